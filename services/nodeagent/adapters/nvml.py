"""NVIDIA GPUs, through the driver's own library (NVML)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from libs.events.machine import Gpu, GpuSample

from ..core.hardware import gpu_class
from . import durable


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the GPUs, and how well."""

    gpus: tuple[Gpu, ...] = ()
    state: Literal["verified", "unverified", "absent"]
    reason: str = ""
    driver: str | None = None


class _Known(msgspec.Struct, frozen=True):
    gpus: tuple[Gpu, ...]
    driver: str | None = None


class Nvml:
    """Reads the GPUs. When the driver fails, the last known list stays, marked as unverified with the reason."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        """File that keeps the last list the driver gave."""
        self._handles: dict[str, Any] = {}

    def look(self) -> Gpus:
        """Every GPU, or why there is none. Never raises."""
        try:
            import pynvml
        except ImportError:
            return Gpus(state="absent", reason="the Python package nvidia-ml-py is not installed")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return self._without(pynvml, error)
        try:
            driver = str(pynvml.nvmlSystemGetDriverVersion())
            handles: dict[str, Any] = {}
            gpus: list[Gpu] = []
            for index in range(pynvml.nvmlDeviceGetCount()):
                gpus += _card(pynvml, index, handles)
            gpus = _with_peers(pynvml, gpus, handles)
        except pynvml.NVMLError as error:
            return self._without(pynvml, error)
        self._handles = handles
        if not gpus:
            return Gpus(state="absent", reason=f"the NVIDIA driver {driver} sees no GPU", driver=driver)
        durable.write(self._memory, msgspec.json.encode(_Known(tuple(gpus), driver)))
        return Gpus(gpus=tuple(gpus), state="verified", driver=driver)

    def _without(self, pynvml: Any, error: Any) -> Gpus:
        if isinstance(error, pynvml.NVMLError_LibraryNotFound):
            reason, gone = "no NVIDIA driver is installed (libnvidia-ml.so.1 was not found)", True
        elif isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
            reason, gone = "the NVIDIA driver was updated and the kernel still runs the old one: reboot needed", False
        elif isinstance(error, pynvml.NVMLError_DriverNotLoaded):
            reason, gone = "the NVIDIA kernel driver is not loaded", False
        else:
            reason, gone = f"the NVIDIA driver does not answer: {error}", False
        self._handles = {}
        known = self.last_known(reason)
        if gone and known.gpus:
            return msgspec.structs.replace(known, reason=f"{reason}, and it was here before")
        return known

    def last_known(self, reason: str) -> Gpus:
        """The last list the driver gave, marked as unverified for this reason; absent when it never gave one."""
        try:
            known = msgspec.json.decode(self._memory.read_bytes(), type=_Known)
        except (OSError, msgspec.DecodeError):
            return Gpus(state="absent", reason=reason)
        return Gpus(gpus=known.gpus, state="unverified", reason=reason, driver=known.driver)

    def samples(self, ours: frozenset[int]) -> tuple[GpuSample, ...]:
        """How each GPU is doing now; ``ours`` are the processes of our engines. What a card does not tell is absent."""
        if not self._handles:
            return ()
        import pynvml

        found = []
        for uuid, handle in self._handles.items():
            memory = _asked(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle)
            use = _asked(pynvml, pynvml.nvmlDeviceGetUtilizationRates, handle)
            power = _asked(pynvml, pynvml.nvmlDeviceGetPowerUsage, handle)
            heat = _asked(pynvml, pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
            holders = _asked(pynvml, pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
            found.append(
                GpuSample(
                    uuid=uuid,
                    memory_used_mb=memory.used // 2**20 if memory is not None else None,
                    foreign_memory_mb=None
                    if holders is None
                    else sum((p.usedGpuMemory or 0) for p in holders if p.pid not in ours) // 2**20,
                    utilisation_percent=float(use.gpu) if use is not None else None,
                    temperature_c=float(heat) if heat is not None else None,
                    power_watts=power / 1000 if power is not None else None,
                )
            )
        return tuple(found)


def _asked(pynvml: Any, function: Any, *arguments: Any) -> Any:
    """What a card says, or None when it does not support the question."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _card(pynvml: Any, index: int, handles: dict[str, Any]) -> list[Gpu]:
    """One card, or the instances it is carved into."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = str(pynvml.nvmlDeviceGetName(handle))
    total_mb = pynvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20
    capability = _asked(pynvml, pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    bus = _asked(pynvml, pynvml.nvmlDeviceGetPciInfo, handle)
    bus_id = str(bus.busId).lower() if bus is not None else None
    card = Gpu(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=name,
        gpu_class=gpu_class(name, total_mb),
        memory_total_mb=total_mb,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        pci_bus_id=bus_id,
        numa_node=_numa_node(bus_id),
    )
    mode = _asked(pynvml, pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        handles[card.uuid] = handle
        return [card]
    instances = []
    for device in range(_asked(pynvml, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _asked(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, device)
        if instance is None:
            continue
        instance_mb = pynvml.nvmlDeviceGetMemoryInfo(instance).total // 2**20
        instance_name = str(pynvml.nvmlDeviceGetName(instance))
        profile = instance_name.rpartition("MIG ")[2].strip() or f"{round(instance_mb / 1024)}gb"
        uuid = str(pynvml.nvmlDeviceGetUUID(instance))
        handles[uuid] = instance
        instances.append(
            msgspec.structs.replace(
                card,
                index=1000 + 100 * index + device,
                uuid=uuid,
                name=instance_name,
                gpu_class=gpu_class(name, total_mb, profile),
                memory_total_mb=instance_mb,
            )
        )
    if instances:
        return instances
    why = "it is in MIG mode and no instance is carved: nothing can run on it until one is, or MIG is turned off"
    return [msgspec.structs.replace(card, problems=(why,))]


def _numa_node(bus_id: str | None) -> int | None:
    if bus_id is None:
        return None
    # NVML writes eight digits of the domain, the kernel four.
    domain, _, rest = bus_id.partition(":")
    try:
        node = int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _with_peers(pynvml: Any, gpus: list[Gpu], handles: dict[str, Any]) -> list[Gpu]:
    """The cards with whom each one reaches over NVLink."""
    joined = []
    for gpu in gpus:
        handle = handles.get(gpu.uuid)
        peers = []
        for other in gpus if handle is not None and gpu.index < 1000 else ():
            peer = handles.get(other.uuid)
            if other is gpu or peer is None or other.index >= 1000:
                continue
            status = _asked(pynvml, pynvml.nvmlDeviceGetP2PStatus, handle, peer, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if status == pynvml.NVML_P2P_STATUS_OK:
                peers.append(other.uuid)
        joined.append(msgspec.structs.replace(gpu, nvlink_peers=tuple(peers)))
    return joined
