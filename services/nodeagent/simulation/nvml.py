"""NVML for a machine that is not there: the same functions, structs and errors as ``pynvml``, from a description.

What a description leaves out a card "does not support". Used by simulated machines and by tests on recorded ones,
so that both go through the code that reads real cards.
"""

from __future__ import annotations

import ctypes
import time
import uuid as uuids
from types import SimpleNamespace
from typing import Any

import msgspec
import pynvml


class Fabric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the driver says of a card's NVLink fabric."""

    state: int
    status: int = 0
    cluster_uuid: str = "00000000-0000-0000-0000-000000000000"
    clique: int = 0
    health_mask: int = 0


class Instance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A MIG instance."""

    device: int
    uuid: str
    profile: str
    memory_mb: int
    memory_used_mb: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None
    processes: dict[int, int | None] | None = {}


class Card(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A card as NVML tells it; None is what it does not support."""

    name: str
    uuid: str
    memory_mb: int | None
    """None: it has none of its own and shares the machine's."""
    memory_used_mb: int = 0
    bus_id: str | None = None
    capability: tuple[int, int] | None = None
    error: str | None = None
    """Name of the error every question about it ends with: ``GPU_IS_LOST``."""
    nvlink_peers: tuple[int, ...] = ()
    nvlinks: int = 0
    fabric: Fabric | None = None
    ecc: bool | None = None
    mig: bool | None = None
    mig_devices: int = 7
    instances: tuple[Instance, ...] = ()
    pcie: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    """Fastest generation card and slot allow, the card's own, lanes in use, most lanes."""
    pcie_generation: int | None = None
    utilisation: tuple[int, int] | None = None
    temperature_c: int | None = None
    memory_temperature_c: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    power_default_mw: int | None = None
    sm_clock_mhz: int | None = None
    throttle: int | None = None
    ecc_uncorrected: int | None = None
    pcie_replays: int | None = None
    remapped: tuple[int, int, int, int] | None = None
    retired: tuple[int, int] | None = None
    retirement_pending: int | None = None
    nvlink_errors: int | None = None
    gpm: dict[str, float] | None = None
    """By metric number: 2 SM activity, 3 SM occupancy, 5 tensor cores, 10 DRAM."""
    processes: dict[int, int | None] | None = {}


class Library(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The driver and its cards."""

    driver: str = "580.95.05"
    cuda: int = 13000
    error: str | None = None
    """Name of the error that loading it ends with: ``LIB_RM_VERSION_MISMATCH``."""
    cards: list[Card] = []
    latency_us: float = 0.0
    """What every question takes."""


def error(name: str) -> Any:
    """The exception NVML's code ``NVML_ERROR_name`` is told by; to be raised."""
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))


class SimulatedNvml:
    """In place of the module ``pynvml``. Constants and structs are the real module's."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.calls = 0
        self._taken: dict[int, tuple[Any, dict[str, float]]] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(getattr(pynvml, name)):
            raise AttributeError(f"the simulated NVML has no {name}")
        return getattr(pynvml, name)

    def _asked(self) -> None:
        self.calls += 1
        if self.library.latency_us:
            time.sleep(self.library.latency_us / 1e6)
        if self.library.error is not None:
            raise error(self.library.error)

    def _card(self, handle: Any) -> Card:
        self._asked()
        card: Card = handle[0] if isinstance(handle, tuple) else handle
        if card.error is not None:
            raise error(card.error)
        return card

    def _of(self, handle: Any, field: str) -> Any:
        value = getattr(self._card(handle), field)
        if value is None or isinstance(handle, tuple):
            raise error("NOT_SUPPORTED")
        return value

    def nvmlInit(self) -> None:
        self._asked()

    def nvmlShutdown(self) -> None:
        return

    def nvmlSystemGetDriverVersion(self) -> str:
        self._asked()
        return self.library.driver

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        self._asked()
        return self.library.cuda

    def nvmlDeviceGetCount(self) -> int:
        self._asked()
        return len(self.library.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._card(self.library.cards[index])
        return self.library.cards[index]

    def nvmlDeviceGetName(self, handle: Any) -> str:
        card = self._card(handle)
        return f"{card.name} MIG {handle[1].profile}" if isinstance(handle, tuple) else card.name

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        card = self._card(handle)
        uuid: str = handle[1].uuid if isinstance(handle, tuple) else card.uuid
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        card = self._card(handle)
        own = handle[1] if isinstance(handle, tuple) else card
        if own.memory_mb is None:
            raise error("NOT_SUPPORTED")
        memory = pynvml.c_nvmlMemory_t()
        memory.total, memory.used = own.memory_mb * 2**20, own.memory_used_mb * 2**20
        memory.free = memory.total - memory.used
        return memory

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        bus_id = self._of(handle, "bus_id")
        info = pynvml.nvmlPciInfo_t()
        info.busId = bus_id.encode()
        return info

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        major, minor = self._of(handle, "capability")
        return major, minor

    def nvmlDeviceGetEccMode(self, handle: Any) -> list[int]:
        return [int(self._of(handle, "ecc"))] * 2

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        return [int(self._of(handle, "mig"))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return int(self._of(handle, "mig_devices"))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        for instance in self._card(handle).instances:
            if instance.device == index:
                return handle, instance
        raise error("NOT_FOUND")

    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        return self._instance(handle, "gpu_instance")

    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:
        return self._instance(handle, "compute_instance")

    def _instance(self, handle: Any, field: str) -> int:
        self._card(handle)
        value = getattr(handle[1], field) if isinstance(handle, tuple) else None
        if value is None:
            raise error("NOT_SUPPORTED")
        return int(value)

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Any, reference: Any) -> int:
        fabric: Fabric = self._of(handle, "fabric")
        info = reference._obj
        info.state, info.status, info.cliqueId, info.healthMask = (
            fabric.state,
            fabric.status,
            fabric.clique,
            fabric.health_mask,
        )
        ctypes.memmove(info.clusterUuid, uuids.UUID(fabric.cluster_uuid).bytes, 16)
        return 0

    def nvmlDeviceGetP2PStatus(self, handle: Any, other: Any, kind: int) -> int:
        card, peer = self._card(handle), self._card(other)
        joined = self.library.cards.index(peer) in card.nvlink_peers
        return int(pynvml.NVML_P2P_STATUS_OK if joined else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)

    def _pcie(self, handle: Any, which: int) -> int:
        value = self._of(handle, "pcie")[which]
        if value is None:
            raise error("NOT_SUPPORTED")
        return int(value)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int:
        return self._pcie(handle, 0)

    def nvmlDeviceGetGpuMaxPcieLinkGeneration(self, handle: Any) -> int:
        return self._pcie(handle, 1)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any) -> int:
        return self._pcie(handle, 2)

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int:
        return self._pcie(handle, 3)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any) -> int:
        return int(self._of(handle, "pcie_generation"))

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        use = pynvml.c_nvmlUtilization_t()
        use.gpu, use.memory = self._of(handle, "utilisation")
        return use

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return int(self._of(handle, "temperature_c"))

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return int(self._of(handle, "power_mw"))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        return int(self._of(handle, "power_limit_mw"))

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any) -> int:
        return int(self._of(handle, "power_limit_mw"))

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any) -> int:
        return int(self._of(handle, "power_default_mw"))

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        return int(self._of(handle, "sm_clock_mhz"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return int(self._of(handle, "throttle"))

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, counter: int) -> int:
        return int(self._of(handle, "ecc_uncorrected"))

    def nvmlDeviceGetPcieReplayCounter(self, handle: Any) -> int:
        return int(self._of(handle, "pcie_replays"))

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, int, int, int]:
        rows: tuple[int, int, int, int] = self._of(handle, "remapped")
        return rows

    def nvmlDeviceGetRetiredPages(self, handle: Any, cause: int) -> list[int]:
        return [0] * self._of(handle, "retired")[cause]

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any) -> int:
        return int(self._of(handle, "retirement_pending"))

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:
        if link >= self._of(handle, "nvlinks"):
            raise error("INVALID_ARGUMENT")
        return 1

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: Any, link: int, counter: int) -> int:
        errors = int(self._of(handle, "nvlink_errors"))
        return errors if link == 0 else 0

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[int]) -> Any:
        card = self._card(handle)
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, number in zip(values, fields, strict=True):
            value.fieldId = number
            value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            if number == pynvml.NVML_FI_DEV_MEMORY_TEMP and card.memory_temperature_c is not None:
                value.nvmlReturn, value.value.uiVal = 0, card.memory_temperature_c
        return values

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        card = self._card(handle)
        held = handle[1].processes if isinstance(handle, tuple) else card.processes
        if held is None:
            raise error("NOT_SUPPORTED")
        return [SimpleNamespace(pid=pid, usedGpuMemory=None if mb is None else mb * 2**20) for pid, mb in held.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:
        if self._card(handle).processes is None:
            raise error("NOT_SUPPORTED")
        return []

    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:
        support = pynvml.c_nvmlGpmSupport_t()
        support.isSupportedDevice = int(self._card(handle).gpm is not None and not isinstance(handle, tuple))
        return support

    def nvmlGpmSampleAlloc(self) -> Any:
        self._asked()
        memory = ctypes.create_string_buffer(8)
        sample = ctypes.cast(memory, pynvml.c_nvmlGpmSample_t)
        self._taken[_address(sample)] = memory, {}
        return sample

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> Any:
        figures = self._of(handle, "gpm")
        self._taken[_address(sample)] = self._taken[_address(sample)][0], figures
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        del self._taken[_address(sample)]

    def nvmlGpmMetricsGet(self, query: Any) -> Any:
        self._asked()
        assert _address(query.sample1) in self._taken
        figures = self._taken[_address(query.sample2)][1]
        for n in range(query.numMetrics):
            metric = query.metrics[n]
            value = figures.get(str(metric.metricId))
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else 0
            metric.value = value or 0.0
        return query


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
