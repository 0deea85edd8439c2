"""Gathers what a check-up concludes from, of this machine and without the bus."""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from libs.events.machine import Gpu, GpuWear
from libs.events.questions import DoctorAnswer
from services.nodeagent.adapters.gpu.dcgm_exporter import Exporter
from services.nodeagent.adapters.gpu.imex import imex, unit_state
from services.nodeagent.adapters.gpu.nvml import Nvml
from services.nodeagent.adapters.gpu.nvml_samples import Sampler
from services.nodeagent.adapters.host import machine
from services.nodeagent.adapters.host.fabric import Ports, distances
from services.nodeagent.adapters.host.host_access import HostAccess, NotThere, TookTooLong
from services.nodeagent.adapters.host.pci import NVIDIA, PCI, cards_on_the_bus
from services.nodeagent.core.machine.cards import wear_problems
from services.nodeagent.core.machine.diagnostics import Facts, findings
from services.nodeagent.core.machine.xid import xid_of
from services.nodeagent.settings import NodeAgentSettings

_UNITS = ("nvidia-fabricmanager", "nvidia-persistenced")
_MODULES = ("ib_uverbs", "nvidia_peermem")
_BRIDGE = "0x0680"
"""The PCI class of an NVSwitch."""


def gather(
    host: HostAccess,
    settings: NodeAgentSettings,
    engines: tuple[str, ...],
    ours: frozenset[int] = frozenset(),
    known: Mapping[str, Gpu] | None = None,
) -> Facts:
    """Look at everything once. Blocks for seconds. ``ours``: processes of our engines; ``known``: cards by UUID as an
    agent that watches them has judged them.
    """
    nvml = Nvml(host, None)
    cards = nvml.look()
    samples = Sampler(nvml, Exporter(None)).samples(ours, {})
    simulated = settings.simulated
    reader = Ports(host, settings.fabrics)
    return Facts(
        arch=host.arch(),
        cpu_count=simulated.cores if simulated else machine.cpu_count(),
        cpu_quota=None if simulated else machine.cpu_quota(),
        cpu_flags=machine.cpu_flags(host),
        memory_total_mb=simulated.memory_mb if simulated else machine.memory_total_mb(),
        simulated=simulated is not None,
        gpus=tuple(
            _judged(
                msgspec.structs.replace(gpu, nic_distances=distances(host, gpu.pci_bus_id, gpu.numa_node)),
                next((sample.wear for sample in samples if sample.uuid == gpu.uuid), None),
                (known or {}).get(gpu.uuid),
            )
            for gpu in cards.gpus
        ),
        gpus_state=cards.state,
        gpus_reason=cards.reason,
        gpus_problems=cards.problems,
        driver=cards.driver,
        samples=samples,
        switches=_switches(host),
        units={unit: unit_state(host, unit) for unit in _UNITS} if cards_on_the_bus(host) else {},
        imex=imex(host) if any(gpu.nvlink for gpu in cards.gpus) else None,
        ports=reader.look()[0],
        port_samples=reader.samples(),
        modules=tuple(name for name in _MODULES if host.target(f"/sys/module/{name}") is not None),
        memlock_bytes=_memlock(),
        xids=_xids(host),
        disk_free_mb=machine.free_for_weights_mb(settings.data_dir),
        data_dir=str(settings.data_dir),
        engines=engines,
    )


def _judged(gpu: Gpu, wear: GpuWear | None, known: Gpu | None) -> Gpu:
    """A card with everything that speaks against it: by this look, by its wear, by what its agent saw earlier."""
    earlier = known.problems if known is not None else ()
    problems = tuple(dict.fromkeys((*gpu.problems, *wear_problems(wear, datetime.now(UTC)), *earlier)))
    gpu_class = known.gpu_class if known is not None else gpu.gpu_class
    return msgspec.structs.replace(gpu, problems=problems, gpu_class=gpu_class)


def examine(facts: Facts) -> DoctorAnswer:
    """What the facts of a machine say is wrong with it."""
    return DoctorAnswer(findings=findings(facts))


def _switches(host: HostAccess) -> int:
    return sum(
        host.text(f"{PCI}/{bus_id}/vendor") == NVIDIA and (host.text(f"{PCI}/{bus_id}/class") or "").startswith(_BRIDGE)
        for bus_id in host.names(PCI)
    )


def _memlock() -> int | None:
    """What this process may pin; None: no limit, or root, whom the kernel does not limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


def _xids(host: HostAccess) -> dict[int, int]:
    """Errors in the kernel's log, by number; none when it cannot be read."""
    try:
        log = host.run("dmesg", timeout_s=10).out
    except (NotThere, TookTooLong):
        return {}
    return dict(Counter(xid.number for line in log.splitlines() if (xid := xid_of(line)) is not None))
