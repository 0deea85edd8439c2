"""NVIDIA GPUs through ``nvidia-smi``, for machines where NVML cannot be loaded."""

from __future__ import annotations

import msgspec

from libs.events.machine import Gpu, PcieLink
from services.nodeagent.adapters.host.host_access import HostAccess, NotThere, TookTooLong
from services.nodeagent.core.machine import smi as read
from services.nodeagent.core.machine.hardware import main_memory

from .nvml_cards import kernels_link, numa_node

_PATIENCE_S = 30.0
"""It initialises every card first when no persistence daemon runs: seconds a card."""


class Failed(Exception):
    """It is there and did not list cards; what it said."""


class Found(msgspec.Struct, frozen=True):
    """The cards ``nvidia-smi`` lists, and the versions of the driver and of CUDA."""

    gpus: tuple[Gpu, ...]
    driver: str
    cuda: str | None


def look(host: HostAccess) -> Found:
    """The cards. Raises NotThere, TookTooLong, Failed."""
    listed = _listed(host)
    full = read.Report()
    listing = ""
    try:
        ran = host.run("nvidia-smi", "-q", "-x", timeout_s=_PATIENCE_S)
        if ran.code == 0:
            full = read.report(ran.out)
        if any(card.mig for card in listed):
            listing = host.run("nvidia-smi", "-L", timeout_s=_PATIENCE_S).out
    except (NotThere, TookTooLong, ValueError):
        # The list stands without the report: what only the report says is then not known.
        pass
    gpus = [
        msgspec.structs.replace(
            gpu,
            numa_node=numa_node(host, gpu.pci_bus_id),
            pcie=kernels_link(host, gpu.pci_bus_id, gpu.pcie or PcieLink()),
        )
        for gpu in read.cards(listed, listing, full)
    ]
    return Found(tuple(gpus), full.driver or "unknown", full.cuda)


def _listed(host: HostAccess) -> list[read.Listed]:
    complaint = ""
    for fields in (read.FIELDS, read.FEWER_FIELDS):
        ran = host.run(
            "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", timeout_s=_PATIENCE_S
        )
        if ran.code == 0:
            main = main_memory(host.text("/proc/meminfo") or "")
            return read.listed(ran.out, fields, main.total_mb if main is not None else None)
        complaint = " ".join((ran.out + ran.err).split())
    if "mismatch" in complaint.lower():
        complaint = "the driver was updated and the kernel still runs the old one: reboot needed"
    raise Failed(complaint[:200] or "it gave no reason")
