"""The scheduler: follows the log always, decides while it leads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from prometheus_client import Counter, Histogram

from libs.bus import Authority, Bus, Snapshot
from libs.events import Event, tag_of
from libs.events.model import ModelUnplaced
from libs.events.replica import ReplicaPlaced
from libs.runtime.secrets import decode_fleet_secret, read_reference

from . import core
from .adapters.listener import Listener
from .core.commands.decide import decide
from .core.reconciler.reconcile import Reconciler
from .core.state.evolve import OWNS, SUBJECTS, evolve
from .core.state.snapshot import Kept, keep, restore
from .core.state.state import State
from .projections import Projection
from .questions import Questions
from .settings import SchedulerSettings

DECIDED = Counter("llmgw_scheduler_decisions_total", "Decisions made without a command, by the event's tag.", ["event"])
REACTING = Histogram(
    "llmgw_scheduler_react_seconds",
    "Time to compare wanted with actual once.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 10),
)


class Scheduler:
    """The service: its parts, wired. Making one raises BadSecret where the fleet secret cannot be read or is none."""

    def __init__(self, settings: SchedulerSettings, bus: Bus) -> None:
        days = settings.retire_lost_after_days
        self._reconciler = Reconciler(settings.starts_at_once, timedelta(days=days) if days else None)
        self._listener = Listener(bus, settings.instance, leads=lambda: self.authority.leading)
        self.authority: Authority[State] = Authority(
            bus,
            "scheduler",
            settings.instance,
            subjects=SUBJECTS,
            initial=State(),
            evolve=evolve,
            decide=decide,
            react=self._react,
            on_change=Projection(bus, _fleet_secret(settings.fleet_secret)).refresh,
            questions=lambda: Questions(self.authority, self._listener).handlers(),
            owns=OWNS,
            snapshot=Snapshot(settings.data_dir / "snapshot.json", Kept, core, keep=keep, restore=restore),
        )

    async def start(self) -> None:
        """Listen, follow the log, and try to lead. Raises BusAway."""
        await self._listener.start()
        await self.authority.start()

    async def stop(self) -> None:
        """Give the lease back and end."""
        await self.authority.stop()
        await self._listener.stop()

    def not_ready(self) -> list[str]:
        """Why it should not be relied on yet."""
        return self.authority.not_ready()

    def _react(self, state: State, now: datetime) -> Sequence[tuple[str, Event]]:
        began = time.perf_counter()
        heartbeats = self._listener.heartbeats_to_decide_on(state.facts.machines)
        decisions = self._reconciler.react(state, heartbeats, now, self._listener.traffic())
        took_s = time.perf_counter() - began
        REACTING.observe(took_s)
        for _, event in decisions:
            DECIDED.labels(tag_of(event)).inc()
        return [(cause, _timed(event, round(took_s * 1000, 3))) for cause, event in decisions]


def _timed(event: Event, took_ms: float) -> Event:
    """The core knows no clock: how long its choice took is written beside it here."""
    if not isinstance(event, ReplicaPlaced | ModelUnplaced):
        return event
    explanation = msgspec.structs.replace(event.explanation, took_ms=took_ms)
    return msgspec.structs.replace(event, explanation=explanation)


def _fleet_secret(reference: str | None) -> bytes | None:
    """Raises BadSecret."""
    return decode_fleet_secret(read_reference(reference), reference) if reference is not None else None


def build(settings: SchedulerSettings, bus: Bus) -> Scheduler:
    """Wire it. Raises BadSecret when the fleet secret cannot be read."""
    return Scheduler(settings, bus)
