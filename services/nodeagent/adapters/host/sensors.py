"""Heat and power of the machine itself: the kernel's hardware monitors and the CPU's energy counters."""

from __future__ import annotations

import re
import time

import msgspec

from .host_access import HostAccess

_MONITORS = "/sys/class/hwmon"
_POWERCAP = "/sys/class/powercap"
_CPU_MONITORS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal", "nvidia_grace"})
_INLET = re.compile(r"\b(inlet|ambient|intake)\b", re.IGNORECASE)


class SensorReadings(msgspec.Struct, frozen=True, kw_only=True):
    """What no sensor tells is None."""

    cpu_temperature_c: float | None = None
    cpu_power_watts: float | None = None
    inlet_temperature_c: float | None = None


class Sensors:
    """Power is an average since the reading before, so the first has none."""

    def __init__(self, host: HostAccess) -> None:
        self._host = host
        self._energy: dict[str, tuple[float, int]] = {}

    def read(self) -> SensorReadings:
        """The readings now."""
        cpu: list[float] = []
        inlet: list[float] = []
        for monitor in self._host.names(_MONITORS):
            folder = f"{_MONITORS}/{monitor}"
            of_cpu = self._host.text(f"{folder}/name") in _CPU_MONITORS
            for entry in self._host.names(folder):
                if not (entry.startswith("temp") and entry.endswith("_input")):
                    continue
                label = self._host.text(f"{folder}/{entry[: -len('_input')]}_label") or ""
                if not of_cpu and not _INLET.search(label):
                    continue
                heat = _number(self._host.text(f"{folder}/{entry}"))
                # Sensors that are not wired read 0, -55 or 127.
                if heat is not None and 0 < heat < 125_000:
                    (cpu if of_cpu else inlet).append(heat / 1000)
        return SensorReadings(
            cpu_temperature_c=max(cpu, default=None),
            cpu_power_watts=self._power(),
            inlet_temperature_c=max(inlet, default=None),
        )

    def _power(self) -> float | None:
        watts = []
        for zone in self._host.names(_POWERCAP):
            # Packages are intel-rapl:N (AMD's too); intel-rapl:N:M are parts of one.
            if re.fullmatch(r"intel-rapl:\d+", zone) is None:
                continue
            now, energy = time.monotonic(), _number(self._host.text(f"{_POWERCAP}/{zone}/energy_uj"))
            before = self._energy.pop(zone, None)
            if energy is None:
                continue
            self._energy[zone] = now, energy
            if before is None or now <= before[0]:
                continue
            used = energy - before[1]
            if used < 0:  # the counter went round
                used += _number(self._host.text(f"{_POWERCAP}/{zone}/max_energy_range_uj")) or 0
            if used >= 0:
                watts.append(used / 1e6 / (now - before[0]))
        return round(sum(watts), 1) if watts else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
