"""Hears machines for the core: who spoke when, and whether we would have heard them if they had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from libs.bus import Bus
from libs.events.leadership import SchedulerPulse
from libs.events.machine import MachineSample, ShardSample
from libs.tasks import end
from services.scheduler.core.inputs.heartbeats import QUIET_AFTER_MS, Heartbeat, Heartbeats
from services.scheduler.core.inputs.traffic import Traffic

from .gateways import GatewayTraffic

PULSE_EVERY_S = 1.0
DEAF_AFTER_S = 3.0
"""Without our own pulse coming back for so long, what others say does not reach us either."""
_STARTS = frozenset({"fetching", "checking", "starting", "loading"})
SNAPSHOT_S = 0.25
"""A snapshot serves so long: the core asks after every event."""


class _Telemetry:
    """What one machine said last."""

    __slots__ = (
        *(
            "disk_free_mb",
            "fetching",
            "foreign_holders",
            "foreign_mb",
            "gap",
            "heard_at",
            "moved",
            "shards",
            "starting",
        ),
    )

    def __init__(self) -> None:
        self.heard_at = 0.0
        """Monotonic seconds of its last sample; 0: there was none."""
        self.gap: tuple[float, float] | None = None
        """Its last long silence: from when to when."""
        self.shards: frozenset[str] = frozenset()
        self.fetching: dict[str, tuple[str, float]] = {}
        """Weights to what was said of them and when that last changed."""
        self.moved: dict[str, tuple[tuple[object, ...], float]] = {}
        """Shard to what it showed of its progress and when that last changed."""
        self.disk_free_mb: int | None = None
        self.foreign_mb: dict[str, int] = {}
        self.foreign_holders: dict[str, str] = {}
        self.starting: dict[str, str] = {}

    def record(self, sample: MachineSample, now: float) -> None:
        if self.heard_at and _ms(now - self.heard_at) >= QUIET_AFTER_MS:
            self.gap = self.heard_at, now
        self.heard_at = now
        self.shards = frozenset(shard.shard_id for shard in sample.shards)
        self.starting = {shard.shard_id: _start(shard) for shard in sample.shards if shard.phase in _STARTS}
        fetching_before = self.fetching
        self.fetching = {
            name: fetching_before[name]
            if name in fetching_before and fetching_before[name][0] == count
            else (count, now)
            for name, count in sample.fetching.items()
        }
        last, self.moved = self.moved, {}
        for shard in sample.shards:
            shown, shown_before = _progress(shard), last.get(shard.shard_id)
            self.moved[shard.shard_id] = (
                shown_before if shown_before is not None and shown_before[0] == shown else (shown, now)
            )
        self.disk_free_mb = sample.weights_free_mb
        self.foreign_mb = {gpu.uuid: gpu.foreign_memory_mb for gpu in sample.gpus if gpu.foreign_memory_mb}
        self.foreign_holders = {
            gpu.uuid: ", ".join(f"process {process.pid}" for process in gpu.foreign_processes)
            for gpu in sample.gpus
            if gpu.foreign_processes
        }


def _progress(shard: ShardSample) -> tuple[object, ...]:
    """What changes while an engine starts."""
    return shard.phase, shard.done_bytes, shard.rss_mb // 16 if shard.rss_mb is not None else None


class _Ago(Mapping[str, int]):
    """How long ago, in ms: worked out when it is asked for, as there are thousands and few matter to a decision."""

    def __init__(self, times: Mapping[str, tuple[object, float]], now: float) -> None:
        self._times = times
        self._now = now

    def __getitem__(self, name: str) -> int:
        return _ms(self._now - self._times[name][1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)


class Listener:
    """Listens to the telemetry of machines, and to itself to know that it can hear.

    Silence counts from the moment this instance began to listen without a gap, or began to decide: after a
    reconnect, a pause of the process, or an election every machine has the whole deadline again.
    """

    def __init__(
        self,
        bus: Bus,
        instance: str,
        monotonic: Callable[[], float] = time.monotonic,
        leads: Callable[[], bool] = lambda: False,
    ) -> None:
        """``leads``: whether this instance does, which its pulse says."""
        self._bus = bus
        self._instance = instance
        self._leads = leads
        self._monotonic = monotonic
        self._telemetry: dict[str, _Telemetry] = {}
        self._known_since: dict[str, float] = {}
        self._own_pulse_at = 0.0
        self._listening_since = monotonic()
        self._traffic_since = self._listening_since
        """Without a gap, whether it decided or not: a standby that takes over knows what gateways did."""
        self._decided_at = 0.0
        self._snapshot: tuple[float, Heartbeats | None] = (0.0, None)
        self._pulse: asyncio.Task[None] | None = None
        self.gateways = GatewayTraffic(monotonic)

    async def start(self) -> None:
        """Listen, and send pulses to oneself. Raises BusAway."""
        await self._bus.listen(MachineSample, self.hear)
        await self.gateways.start(self._bus)
        await self._bus.listen(SchedulerPulse, self.hear_own_pulse, instance=self._instance)
        self._pulse = self._bus.background("the scheduler's pulse", self._send_pulses)

    async def stop(self) -> None:
        """Send no more pulses."""
        if self._pulse is not None:
            await end(self._pulse)

    async def _send_pulses(self) -> None:
        while True:
            await self._bus.tell(SchedulerPulse(at=datetime.now(UTC), instance=self._instance, leads=self._leads()))
            self.gateways.sample()
            await asyncio.sleep(PULSE_EVERY_S)

    async def hear(self, sample: MachineSample) -> None:
        """A machine spoke."""
        self._telemetry.setdefault(sample.machine_id, _Telemetry()).record(sample, self._monotonic())

    async def hear_own_pulse(self, pulse: SchedulerPulse) -> None:
        """What we said came back: what others say reaches us too."""
        now = self._monotonic()
        if now - self._own_pulse_at > DEAF_AFTER_S:
            self._listening_since = self._traffic_since = now
        self._own_pulse_at = now

    def heartbeats_to_decide_on(self, machine_ids: Iterable[str]) -> Heartbeats | None:
        """What is heard, for a decision. Whoever has not decided for a while begins to listen anew."""
        now = self._monotonic()
        if now - self._decided_at > DEAF_AFTER_S:
            self._listening_since = now
        self._decided_at = now
        if now - self._snapshot[0] > SNAPSHOT_S:
            self._snapshot = (now, self.heartbeats(machine_ids))
        return self._snapshot[1]

    def heartbeats(self, machine_ids: Iterable[str]) -> Heartbeats | None:
        """What is heard of these machines; None if nothing can be heard now."""
        now = self._monotonic()
        if now - self._own_pulse_at > DEAF_AFTER_S:
            return None
        heard = {machine_id: self._heartbeat(machine_id, now) for machine_id in machine_ids}
        if len(self._known_since) > len(heard):
            for gone in self._known_since.keys() - heard.keys():
                del self._known_since[gone]
                self._telemetry.pop(gone, None)
        return heard

    def traffic(self) -> Traffic | None:
        """What gateways do; None if nothing can be heard now."""
        if self._monotonic() - self._own_pulse_at > DEAF_AFTER_S:
            return None
        return self.gateways.traffic(self._traffic_since)

    def _heartbeat(self, machine_id: str, now: float) -> Heartbeat:
        # A machine cannot have been silent for longer than it has been known.
        known = self._known_since.setdefault(machine_id, now)
        since = max(self._listening_since, known)
        telemetry = self._telemetry.get(machine_id)
        if telemetry is None:
            return Heartbeat(silent_ms=_ms(now - since), sampled=False)
        return Heartbeat(
            silent_ms=_ms(now - max(telemetry.heard_at, since)),
            gap_ms=self._gap_ms(telemetry, now),
            sampled=telemetry.heard_at >= self._listening_since,
            shards=telemetry.shards,
            fetching_ms=_Ago(telemetry.fetching, now),
            moved_ms=_Ago(telemetry.moved, now),
            disk_free_mb=telemetry.disk_free_mb,
            foreign_mb=telemetry.foreign_mb,
            foreign_holders=telemetry.foreign_holders,
            starting=telemetry.starting,
        )

    def _gap_ms(self, telemetry: _Telemetry, now: float) -> int | None:
        """What we could not hear of is no silence."""
        if telemetry.gap is None:
            return None
        began, ended = max(telemetry.gap[0], self._listening_since), telemetry.gap[1]
        return _ms(now - ended) if _ms(ended - began) >= QUIET_AFTER_MS else None


def _start(shard: ShardSample) -> str:
    if shard.done_bytes is None or shard.total_bytes is None:
        return str(shard.phase)
    return f"{shard.phase} {shard.done_bytes / 1e9:.2f} of {shard.total_bytes / 1e9:.2f} GB"


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
