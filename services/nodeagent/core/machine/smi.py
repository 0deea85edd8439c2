"""What ``nvidia-smi`` prints, read."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET

import msgspec

from libs.events.machine import (
    Gpu,
    MigInstance,
    NvlinkFabric,
    PcieLink,
)

from .cards import MIG_EMPTY, ZEROS, nvlink_domain
from .hardware import gpu_class
from .mig import carved
from .pcie import kernel_bus_id

FIELDS = ("index", "uuid", "name", "memory.total", "compute_cap", "pci.bus_id", "ecc.mode.current", "mig.mode.current",
          "pcie.link.gen.max", "pcie.link.gen.gpumax", "pcie.link.width.current", "pcie.link.width.max")  # fmt: skip

FEWER_FIELDS = FIELDS[:4] + FIELDS[5:6]
"""What every driver knows; one unknown field fails a whole query."""


class Listed(msgspec.Struct, frozen=True):
    """A card as the query lists it."""

    gpu: Gpu
    mig: bool


class Report(msgspec.Struct, frozen=True):
    """What the full report adds."""

    driver: str = ""
    cuda: str | None = None
    fabrics: dict[str, NvlinkFabric] = {}
    instances: dict[str, list[tuple[int, int | None, int | None, int]]] = {}
    """Card UUID to its instances: device, GPU instance, compute instance, memory in MB."""


def stated(text: str | None) -> str | None:
    """A value, or None for what the driver does not tell."""
    cleaned = (text or "").strip()
    return None if cleaned in ("", "N/A", "[N/A]", "[Not Supported]", "Not Supported", "None", "Unknown Error",
                               "[Unknown Error]", "[GPU is lost]") else cleaned  # fmt: skip


def whole(text: str | None) -> int | None:
    """The whole number a text begins with, or None."""
    digits = re.match(r"-?\d+", stated(text) or "")
    return int(digits.group()) if digits else None


def listed(output: str, fields: tuple[str, ...], main_mb: int | None = None) -> list[Listed]:
    """The cards of ``--query-gpu=… --format=csv,noheader,nounits``. A line that is no card's is skipped.

    ``main_mb``: the machine's memory, which is that of a card that says it has none of its own.
    """
    cards = []
    for row in csv.reader(io.StringIO(output), skipinitialspace=True):
        values = dict(zip(fields, row, strict=False))
        index, uuid, name = whole(values.get("index")), stated(values.get("uuid")), stated(values.get("name"))
        memory = whole(values.get("memory.total"))
        unified = memory is None and (values.get("memory.total") or "").strip() in ("[N/A]", "N/A", "[Not Supported]")
        if unified:
            memory = main_mb
        if index is None or uuid is None or name is None or memory is None:
            continue
        bus_id = stated(values.get("pci.bus_id"))
        link = PcieLink(
            generation=whole(values.get("pcie.link.gen.max")),
            card_generation=whole(values.get("pcie.link.gen.gpumax")),
            lanes=whole(values.get("pcie.link.width.current")),
            card_lanes=whole(values.get("pcie.link.width.max")),
        )
        ecc = stated(values.get("ecc.mode.current"))
        gpu = Gpu(
            index=index,
            uuid=uuid,
            name=name,
            gpu_class=gpu_class(name, memory),
            memory_total_mb=memory,
            unified_memory=unified,
            compute_capability=stated(values.get("compute_cap")),
            pci_bus_id=kernel_bus_id(bus_id) if bus_id else None,
            pcie=link if link != PcieLink() else None,
            ecc_enabled=None if ecc is None else ecc == "Enabled",
        )
        cards.append(Listed(gpu, stated(values.get("mig.mode.current")) == "Enabled"))
    return cards


_INSTANCE = re.compile(r"^\s+MIG (?P<profile>\S+)\s+Device\s+(?P<device>\d+):\s+\(UUID: (?P<uuid>[^)]+)\)")
_CARD = re.compile(r"^GPU (?P<index>\d+): .*\(UUID: (?P<uuid>[^)]+)\)")


def instances(listing: str) -> dict[str, list[tuple[int, str, str]]]:
    """Card UUID to its instances of ``nvidia-smi -L``: device, profile, UUID."""
    by_card: dict[str, list[tuple[int, str, str]]] = {}
    card = ""
    for line in listing.splitlines():
        if match := _CARD.match(line):
            card = match["uuid"]
        elif (match := _INSTANCE.match(line)) and card:
            by_card.setdefault(card, []).append((int(match["device"]), match["profile"], match["uuid"]))
    return by_card


def report(xml: str) -> Report:
    """The full report, ``nvidia-smi -q -x``. Raises ValueError when it is not one."""
    try:
        root = ET.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", xml))
    except ET.ParseError as error:
        raise ValueError(f"the report of nvidia-smi is not XML: {error}") from None
    fabrics: dict[str, NvlinkFabric] = {}
    instances: dict[str, list[tuple[int, int | None, int | None, int]]] = {}
    for gpu in root.iter("gpu"):
        uuid = stated(gpu.findtext("uuid"))
        if uuid is None:
            continue
        fabric = _fabric(gpu.find("fabric"))
        if fabric is not None:
            fabrics[uuid] = fabric
        for device_node in gpu.iterfind("mig_devices/mig_device"):
            device, memory = whole(device_node.findtext("index")), whole(device_node.findtext("fb_memory_usage/total"))
            if device is not None and memory is not None:
                ids = whole(device_node.findtext("gpu_instance_id")), whole(device_node.findtext("compute_instance_id"))
                instances.setdefault(uuid, []).append((device, *ids, memory))
    return Report(
        stated(root.findtext("driver_version")) or "", stated(root.findtext("cuda_version")), fabrics, instances
    )


def _fabric(node: ET.Element | None) -> NvlinkFabric | None:
    state = stated(node.findtext("state")) if node is not None else None
    names = {"Completed": "completed", "In Progress": "in_progress", "Not Started": "not_started"}
    known = names.get(state or "")
    if node is None or known is None:
        return None
    cluster = stated(node.findtext("cluster_uuid") or node.findtext("clusterUuid"))
    clique = whole(node.findtext("clique_id") or node.findtext("cliqueId"))
    status = stated(node.findtext("status"))
    joined = cluster is not None and cluster != ZEROS
    degraded = stated(node.findtext("health/bandwidth"))
    return NvlinkFabric(
        state=known,  # type: ignore[arg-type]
        status="" if status in (None, "Success") or known != "completed" else status,
        cluster_uuid=cluster if joined else None,
        clique=clique if joined else None,
        bandwidth_degraded=None if degraded is None else degraded.lower() not in ("full", "healthy"),
    )


def cards(listed_cards: list[Listed], listing: str, full: Report) -> list[Gpu]:
    """The cards, those in MIG mode replaced by their instances."""
    names = instances(listing)
    gpus: list[Gpu] = []
    for listed_card in listed_cards:
        fabric = full.fabrics.get(listed_card.gpu.uuid)
        gpu = msgspec.structs.replace(
            listed_card.gpu,
            nvlink=fabric,
            nvlink_domain=nvlink_domain(fabric.cluster_uuid, fabric.clique, fabric.state) if fabric else None,
        )
        if not listed_card.mig:
            gpus.append(gpu)
            continue
        sizes = {device: (gi, ci, memory) for device, gi, ci, memory in full.instances.get(gpu.uuid, [])}
        pieces = []
        for device, profile, uuid in names.get(gpu.uuid, []):
            gi, ci, memory = sizes.get(device, (None, None, 0))
            mig = MigInstance(
                card_index=gpu.index,
                card_uuid=gpu.uuid,
                card_memory_total_mb=gpu.memory_total_mb,
                device=device,
                profile=profile,
                gpu_instance=gi,
                compute_instance=ci,
            )
            pieces.append(carved(gpu, mig, uuid, memory))
        gpus += pieces or [msgspec.structs.replace(gpu, problems=(MIG_EMPTY,))]
    return gpus
