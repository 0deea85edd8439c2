"""What NVML says each card is."""

from __future__ import annotations

import ctypes
import uuid as uuids
from typing import Any

import msgspec

from libs.events.machine import (
    Gpu,
    MigInstance,
    NvlinkFabric,
    PcieLink,
)
from services.nodeagent.adapters.host.host_access import HostAccess
from services.nodeagent.adapters.host.pci import PCI
from services.nodeagent.core.machine.cards import MIG_EMPTY, ZEROS, nvlink_domain
from services.nodeagent.core.machine.hardware import gpu_class, main_memory
from services.nodeagent.core.machine.mig import carved
from services.nodeagent.core.machine.pcie import generation_of, kernel_bus_id


class Handle(msgspec.Struct, frozen=True):
    """How NVML is asked about a GPU: by its own handle, and for what only the whole card has by the card's."""

    own: Any
    card: Any
    bus_id: str | None

    @property
    def instance(self) -> bool:
        """Whether it is a MIG instance."""
        return self.own is not self.card


def asked(nvml: Any, function: str, *arguments: Any) -> Any:
    """What a card says, or None: it does not support the question, or the installed library does not know it."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def text(value: Any) -> str:
    """A name as NVML gives it, bytes or text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def card(nvml: Any, host: HostAccess, index: int, handles: dict[str, Handle]) -> list[Gpu]:
    """One card, or the instances it is carved into; adds their handles. Raises NVMLError when it does not answer."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = text(nvml.nvmlDeviceGetName(handle))
    total_mb, unified = _memory(nvml, host, handle)
    bus = asked(nvml, "nvmlDeviceGetPciInfo", handle)
    bus_id = kernel_bus_id(text(bus.busId)) if bus is not None else None
    capability = asked(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    fabric = _fabric(nvml, handle)
    ecc = asked(nvml, "nvmlDeviceGetEccMode", handle)
    whole = Gpu(
        index=index,
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        name=name,
        gpu_class=gpu_class(name, total_mb),
        memory_total_mb=total_mb,
        unified_memory=unified,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        pci_bus_id=bus_id,
        numa_node=numa_node(host, bus_id),
        nvlink=fabric,
        nvlink_domain=nvlink_domain(fabric.cluster_uuid, fabric.clique, fabric.state) if fabric else None,
        pcie=_pcie(nvml, host, handle, bus_id),
        ecc_enabled=bool(ecc[0]) if ecc else None,
        power_limit_watts=_watts(asked(nvml, "nvmlDeviceGetPowerManagementLimit", handle)),
        power_default_watts=_watts(asked(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle)),
    )
    mode = asked(nvml, "nvmlDeviceGetMigMode", handle)
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        handles[whole.uuid] = Handle(handle, handle, bus_id)
        return [whole]
    instances = [
        instance
        for device in range(asked(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
        if (instance := _instance(nvml, whole, handle, device, handles)) is not None
    ]
    return instances or [msgspec.structs.replace(whole, problems=(MIG_EMPTY,))]


def _memory(nvml: Any, host: HostAccess, handle: Any) -> tuple[int, bool]:
    """MB of a card, and whether they are the machine's own: such a card (GB10, Jetson) says it has none. Raises
    NVMLError.
    """
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20, False
    except nvml.NVMLError_NotSupported:
        memory = main_memory(host.text("/proc/meminfo") or "")
        if memory is None:
            raise
        return memory.total_mb, True


def _watts(milliwatts: int | None) -> int | None:
    return round(milliwatts / 1000) if milliwatts else None


def _instance(nvml: Any, whole: Gpu, card: Any, device: int, handles: dict[str, Handle]) -> Gpu | None:
    own = asked(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", card, device)
    memory = asked(nvml, "nvmlDeviceGetMemoryInfo", own) if own is not None else None
    uuid = asked(nvml, "nvmlDeviceGetUUID", own) if own is not None else None
    if memory is None or uuid is None:
        return None
    total_mb = memory.total // 2**20
    device_name = asked(nvml, "nvmlDeviceGetName", own)
    name = text(device_name) if device_name is not None else whole.name
    profile = name.rpartition("MIG ")[2].strip() if "MIG " in name else f"{round(total_mb / 1024)}gb"
    handles[text(uuid)] = Handle(own, card, whole.pci_bus_id)
    return carved(
        whole,
        MigInstance(
            card_index=whole.index,
            card_uuid=whole.uuid,
            card_memory_total_mb=whole.memory_total_mb,
            device=device,
            profile=profile,
            gpu_instance=asked(nvml, "nvmlDeviceGetGpuInstanceId", own),
            compute_instance=asked(nvml, "nvmlDeviceGetComputeInstanceId", own),
        ),
        text(uuid),
        total_mb,
    )


def _fabric(nvml: Any, handle: Any) -> NvlinkFabric | None:
    try:
        info = nvml.c_nvmlGpuFabricInfo_v2_t()
    except AttributeError:
        return None
    if asked(nvml, "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
        return None
    states = {
        nvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not_started",
        nvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in_progress",
        nvml.NVML_GPU_FABRIC_STATE_COMPLETED: "completed",
    }
    state: Any = states.get(info.state)
    if state is None:
        return None
    cluster = str(uuids.UUID(bytes=bytes(info.clusterUuid)))
    degraded = info.healthMask & nvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW
    known = {
        nvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE: True,
        nvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE: False,
    }
    return NvlinkFabric(
        state=state,
        status="" if info.status == nvml.NVML_SUCCESS or state != "completed" else str(nvml.NVMLError(info.status)),
        cluster_uuid=None if cluster == ZEROS else cluster,
        clique=info.cliqueId if cluster != ZEROS else None,
        bandwidth_degraded=known.get(degraded),
    )


def _pcie(nvml: Any, host: HostAccess, handle: Any, bus_id: str | None) -> PcieLink | None:
    return kernels_link(
        host,
        bus_id,
        PcieLink(
            generation=asked(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
            card_generation=asked(nvml, "nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
            lanes=asked(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
            card_lanes=asked(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        ),
    )


def kernels_link(host: HostAccess, bus_id: str | None, link: PcieLink) -> PcieLink | None:
    """``link`` with what the kernel knows better: the driver calls "max" what card and slot allow together, so a
    card of 16 lanes in a slot of 8 reads 8 of 8 there."""
    if bus_id is not None:
        folder = f"{PCI}/{bus_id}"
        link = PcieLink(
            generation=link.generation,
            card_generation=link.card_generation or generation_of(host.text(f"{folder}/max_link_speed")),
            lanes=_whole(host.text(f"{folder}/current_link_width")) or link.lanes,
            card_lanes=_whole(host.text(f"{folder}/max_link_width")) or link.card_lanes,
        )
    return None if link == PcieLink() else link


def _whole(text: str | None) -> int | None:
    # The kernel writes 0 for a link that is down and 255 for one that is unknown.
    return int(text) if text is not None and text.isdigit() and 0 < int(text) <= 32 else None


def numa_node(host: HostAccess, bus_id: str | None) -> int | None:
    """The NUMA node of the card at a bus id; None: not known, or the machine has only one."""
    node = host.text(f"{PCI}/{bus_id}/numa_node") if bus_id is not None else None
    return int(node) if node is not None and node.isdigit() else None  # -1: the machine has only one


def with_peers(nvml: Any, gpus: list[Gpu], handles: dict[str, Handle]) -> list[Gpu]:
    """The cards with whom each one reaches over NVLink."""
    cards = {gpu.uuid: handles[gpu.uuid].own for gpu in gpus if gpu.mig is None and gpu.uuid in handles}
    joined = []
    for gpu in gpus:
        own = cards.get(gpu.uuid)
        peers = tuple(
            uuid
            for uuid, other in (cards.items() if own is not None else ())
            if uuid != gpu.uuid
            and asked(nvml, "nvmlDeviceGetP2PStatus", own, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            == nvml.NVML_P2P_STATUS_OK
        )
        joined.append(msgspec.structs.replace(gpu, nvlink_peers=peers) if peers else gpu)
    return joined
