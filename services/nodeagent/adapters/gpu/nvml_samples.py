"""How the GPUs are doing, through NVML: the quick part every few seconds, the rest on slower clocks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from libs.events.machine import (
    ChipUse,
    ForeignProcess,
    GpuSample,
    GpuWear,
)
from services.nodeagent.core.machine.hardware import main_memory

from .dcgm_exporter import Exporter
from .nvml import Nvml
from .nvml_cards import Handle, asked

_SLOW_S = 10.0
"""Temperatures of memory, limits, ECC counts: they move slowly."""

_WEAR_S = 60.0
_FOREIGN_SHOWN = 4
_MAX_LINKS = 18


class Xids(msgspec.Struct, frozen=True):
    """Errors of one card since the agent started."""

    count: int
    last: int
    text: str
    at: datetime


class _Slow(msgspec.Struct, frozen=True):
    power_limit_watts: float | None = None
    memory_temperature_c: float | None = None
    ecc_uncorrected: int | None = None
    pcie_generation: int | None = None


class Sampler:
    """Reads samples. Not for several threads at once."""

    def __init__(self, nvml: Nvml, exporter: Exporter) -> None:
        self._nvml = nvml
        self._use = ChipUseReader()
        self.exporter = exporter
        self._slow: dict[str, tuple[float, _Slow]] = {}
        self._wear: dict[str, tuple[float, GpuWear]] = {}
        self._used: tuple[float, dict[str, ChipUse]] = (float("-inf"), {})
        self.holders: dict[str, dict[int, int | None]] = {}
        """GPU UUID to the processes that hold memory on it and how much, MB, as of the last sample; a GPU that did
        not say is absent."""

    def expire(self) -> None:
        """Read the slow parts anew the next time."""
        self._slow.clear()
        self._wear.clear()

    def samples(self, ours: frozenset[int], xids: Mapping[str, Xids]) -> tuple[GpuSample, ...]:
        """Every GPU NVML answers for. ``ours``: processes of our engines; ``xids``: by bus id without the function."""
        nvml = self._nvml.library
        if nvml is None:
            return ()
        now = time.monotonic()
        handles = self._nvml.handles
        if now - self._used[0] >= _SLOW_S:
            used = self._use.read(nvml, handles)
            if any(not handle.instance and not self._use.knows(uuid) for uuid, handle in handles.items()):
                used = self.exporter.read() | used
            self._used = now, used
        holders: dict[str, dict[int, int | None]] = {}
        samples = []
        for uuid, handle in handles.items():
            held = _holders(nvml, handle)
            if held is not None:
                holders[uuid] = held
            quick = self._quick(nvml, uuid, handle, held, ours)
            slow = self._aged(self._slow, uuid, now, _SLOW_S, lambda h=handle: _slow(nvml, h))
            wear = self._aged(self._wear, uuid, now, _WEAR_S, lambda h=handle: _wear(nvml, h))
            samples.append(
                msgspec.structs.replace(
                    quick,
                    power_limit_watts=slow.power_limit_watts,
                    memory_temperature_c=slow.memory_temperature_c,
                    ecc_uncorrected=slow.ecc_uncorrected,
                    pcie_generation=slow.pcie_generation,
                    wear=_with_xids(wear, xids.get((handle.bus_id or "").partition(".")[0])),
                    use=self._used[1].get(uuid),
                )
            )
        self.holders = holders
        return tuple(samples)

    @staticmethod
    def _aged(kept: dict[str, tuple[float, Any]], uuid: str, now: float, every_s: float, read: Any) -> Any:
        if uuid not in kept or now - kept[uuid][0] >= every_s:
            kept[uuid] = now, read()
        return kept[uuid][1]

    def _quick(
        self, nvml: Any, uuid: str, handle: Handle, held: dict[int, int | None] | None, ours: frozenset[int]
    ) -> GpuSample:
        memory = asked(nvml, "nvmlDeviceGetMemoryInfo", handle.own)
        used_mb = memory.used // 2**20 if memory is not None else None
        if uuid in self._nvml.unified:
            main = main_memory(self._nvml.host.text("/proc/meminfo") or "")
            used_mb = main.used_mb if main is not None else None
        # No driver measures utilisation of an instance; heat, power and clocks are the whole card's.
        use = None if handle.instance else asked(nvml, "nvmlDeviceGetUtilizationRates", handle.own)
        power = asked(nvml, "nvmlDeviceGetPowerUsage", handle.card)
        heat = asked(nvml, "nvmlDeviceGetTemperature", handle.card, nvml.NVML_TEMPERATURE_GPU)
        clock = asked(nvml, "nvmlDeviceGetClockInfo", handle.card, nvml.NVML_CLOCK_SM)
        foreign = {pid: mb for pid, mb in held.items() if pid not in ours} if held is not None else None
        return GpuSample(
            uuid=uuid,
            memory_used_mb=used_mb,
            foreign_memory_mb=sum(mb or 0 for mb in foreign.values()) if foreign is not None else None,
            foreign_processes=tuple(
                ForeignProcess(pid=pid, memory_mb=mb)
                for pid, mb in sorted(foreign.items(), key=lambda holder: -(holder[1] or 0))[:_FOREIGN_SHOWN]
            )
            if foreign is not None
            else None,
            utilisation_percent=float(use.gpu) if use is not None else None,
            memory_utilisation_percent=float(use.memory) if use is not None else None,
            temperature_c=float(heat) if heat is not None else None,
            power_watts=power / 1000 if power is not None else None,
            sm_clock_mhz=clock,
            throttled_by=_throttled(nvml, handle.card),
        )


def _holders(nvml: Any, handle: Handle) -> dict[int, int | None] | None:
    """Processes that hold memory on a GPU, MB each; None when it does not say who does."""
    held_mb: dict[int, int | None] = {}
    heard = False
    for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        listed = asked(nvml, function, handle.own)
        if listed is None:
            continue
        heard = True
        for process in listed:
            # Absent in a container and under Windows' driver model: the process is known, its share is not.
            held_mb[process.pid] = process.usedGpuMemory // 2**20 if process.usedGpuMemory is not None else None
    return held_mb if heard else None


def _throttled(nvml: Any, card: Any) -> tuple[str, ...] | None:
    reasons = asked(nvml, "nvmlDeviceGetCurrentClocksEventReasons", card)
    if reasons is None:
        reasons = asked(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", card)  # before driver 535
    if reasons is None:
        return None
    bits = {
        "sw_power_cap": 0x04,
        "hw_slowdown": 0x08,
        "sw_thermal": 0x20,
        "hw_thermal": 0x40,
        "power_brake": 0x80,
    }
    return tuple(name for name, bit in bits.items() if reasons & bit)


def _slow(nvml: Any, handle: Handle) -> _Slow:
    limit = asked(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle.card)
    heat = field(nvml, handle.card, nvml.NVML_FI_DEV_MEMORY_TEMP)
    return _Slow(
        power_limit_watts=limit / 1000 if limit is not None else None,
        # 0 is what cards without a sensor there say.
        memory_temperature_c=float(heat) if heat else None,
        ecc_uncorrected=asked(
            nvml,
            "nvmlDeviceGetTotalEccErrors",
            handle.card,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        pcie_generation=asked(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle.card),
    )


def field(nvml: Any, card: Any, number: int) -> int | None:
    """A figure that NVML has only as a numbered field."""
    values = asked(nvml, "nvmlDeviceGetFieldValues", card, [number])
    if not values or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _wear(nvml: Any, handle: Handle) -> GpuWear:
    card = handle.card
    rows = asked(nvml, "nvmlDeviceGetRemappedRows", card)
    pending = asked(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", card)

    def pages(cause: int) -> int | None:
        retired = asked(nvml, "nvmlDeviceGetRetiredPages", card, cause)
        return len(retired) if retired is not None else None

    links = [link for link in range(_MAX_LINKS) if asked(nvml, "nvmlDeviceGetNvLinkState", card, link)]

    def errors(counter: int) -> int | None:
        counts = [asked(nvml, "nvmlDeviceGetNvLinkErrorCounter", card, link, counter) for link in links]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    return GpuWear(
        pcie_replays=asked(nvml, "nvmlDeviceGetPcieReplayCounter", card),
        retired_pages_single_bit=pages(nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS),
        retired_pages_double_bit=pages(nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR),
        retirement_pending=bool(pending) if pending is not None else None,
        remapped_rows_correctable=rows[0] if rows else None,
        remapped_rows_uncorrectable=rows[1] if rows else None,
        remap_pending=bool(rows[2]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
        nvlink_crc_errors=errors(nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
        nvlink_replay_errors=errors(nvml.NVML_NVLINK_ERROR_DL_REPLAY),
        nvlink_recovery_errors=errors(nvml.NVML_NVLINK_ERROR_DL_RECOVERY),
    )


def _with_xids(wear: GpuWear, xids: Xids | None) -> GpuWear | None:
    if xids is not None:
        wear = msgspec.structs.replace(
            wear, xids=xids.count, last_xid=xids.last, last_xid_text=xids.text, last_xid_at=xids.at
        )
    return None if wear == GpuWear() else wear


class ChipUseReader:
    """NVML's own profiling counters (GPM), on Hopper and later. Each reading is over the time since the last one."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._without: set[str] = set()

    def knows(self, uuid: str) -> bool:
        """Whether a card has these counters, as of the last reading."""
        return uuid not in self._without

    def read(self, nvml: Any, handles: Mapping[str, Handle]) -> dict[str, ChipUse]:
        """By GPU UUID; a card appears from the second reading on. Instances and older cards never do."""
        uses = {}
        for uuid in [uuid for uuid in self._before if uuid not in handles]:
            asked(nvml, "nvmlGpmSampleFree", self._before.pop(uuid))
        for uuid, handle in handles.items():
            if handle.instance or uuid in self._without:
                continue
            support = asked(nvml, "nvmlGpmQueryDeviceSupport", handle.card)
            if support is None or not support.isSupportedDevice:
                self._without.add(uuid)
                continue
            now = self._sample(nvml, handle)
            before = self._before.pop(uuid, None)
            if now is not None:
                # A card that did not answer now must not be measured from before it.
                self._before[uuid] = now
                if before is not None and (use := _between(nvml, before, now)) is not None:
                    uses[uuid] = use
            if before is not None:
                asked(nvml, "nvmlGpmSampleFree", before)
        return uses

    @staticmethod
    def _sample(nvml: Any, handle: Handle) -> Any:
        sample = asked(nvml, "nvmlGpmSampleAlloc")
        if sample is not None and asked(nvml, "nvmlGpmSampleGet", handle.card, sample) is None:
            asked(nvml, "nvmlGpmSampleFree", sample)
            return None
        return sample


def _between(nvml: Any, before: Any, now: Any) -> ChipUse | None:
    names = {
        "sm_active_percent": nvml.NVML_GPM_METRIC_SM_UTIL,
        "sm_occupancy_percent": nvml.NVML_GPM_METRIC_SM_OCCUPANCY,
        "tensor_active_percent": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        "dram_active_percent": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    }
    query = nvml.c_nvmlGpmMetricsGet_t()
    query.version = nvml.NVML_GPM_METRICS_GET_VERSION
    query.numMetrics = len(names)
    query.sample1, query.sample2 = before, now
    for n, metric in enumerate(names.values()):
        query.metrics[n].metricId = metric
    answer = asked(nvml, "nvmlGpmMetricsGet", query)
    if answer is None:
        return None
    values = {
        name: round(answer.metrics[n].value, 1)
        for n, name in enumerate(names)
        if answer.metrics[n].nvmlReturn == nvml.NVML_SUCCESS and answer.metrics[n].value >= 0
    }
    return ChipUse(source="gpm", **values) if values else None
