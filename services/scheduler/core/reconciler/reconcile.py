"""Wanted against actual, for every model: the difference, as events.

Level-triggered: nothing here remembers what was decided before. Whatever is missing now is decided now, and
decided in the same words by whoever decides it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from libs.events.replica import ShardPlacement
from services.scheduler.core.inputs.heartbeats import LOST_AFTER_MS, Heartbeats
from services.scheduler.core.inputs.traffic import Traffic
from services.scheduler.core.placement.candidates import Tables
from services.scheduler.core.placement.capacity import Capacity
from services.scheduler.core.state.facts import Model
from services.scheduler.core.state.state import State

from .demand import CLASSES
from .model_reconciler import ModelReconciler
from .nodes import Decision, node_decisions
from .round import Round, Starts
from .throughput import Throughput

LISTEN_AGAIN = timedelta(seconds=1)
"""What is heard is looked at again after so long even if it is the same."""


class _Settled(msgspec.Struct, frozen=True):
    """That nothing was to be done about a model, and how long this holds."""

    touched: int
    capacity: int | None
    """Its shortage was judged on this; None: nothing is lacking."""
    at: datetime
    due: datetime | None
    reserved: tuple[ShardPlacement, ...] = ()
    """Room it waits for."""
    queued: bool = False
    """It waits until fewer replicas are starting."""

    def holds(self, state: State, model: Model, starts: Starts, now: datetime) -> bool:
        return (
            self.touched == model.touched
            and (starts.full or not self.queued)
            and (self.capacity is None or self.capacity == state.capacity_changed)
            and (self.due is None or self.at <= now < self.due)  # clocks may step back
        )


class Reconciler:
    """The leader's judgement. What it keeps only spares work: a new one decides the same.

    (But for one thing: why nothing fits is told anew when room was gained, not when yet more of it went.)
    """

    def __init__(self, starts_at_once: int = 0, retire_after: timedelta | None = None) -> None:
        """``starts_at_once``: replicas that may be starting at any moment; 0: as many as suit the fleet.
        ``retire_after``: how long a lost machine is known; None: for ever."""
        self._retire_after = retire_after
        self._starts_at_once = starts_at_once
        self._settled: dict[str, _Settled] = {}
        self._tables = Tables()
        self._throughput = Throughput()
        self._capacity: Capacity | None = None
        self._heard: tuple[Heartbeats | None, int, datetime] | None = None
        """What was heard, and the state of nodes, when there was last nothing to say of them."""
        self._listened: Heartbeats | None = None
        self._silent: set[str] = set()

    def react(
        self, state: State, heartbeats: Heartbeats | None, now: datetime, traffic: Traffic | None = None
    ) -> list[Decision]:
        """What is to be done now, with the cause of each. Empty when there is nothing to do.

        Nodes come first and alone: the rest is decided on what they are.
        """
        decisions = self._nodes(state, heartbeats, traffic, now)
        if decisions:
            return decisions
        if self._capacity is None or self._capacity.state is not state:
            self._capacity, self._tables = Capacity(state), Tables()
        self._capacity.begin()
        self._listen(state, heartbeats)
        starts = Starts(state, now, self._starts_at_once)
        round_ = Round(state, self._capacity, starts, self._tables, heartbeats, traffic, now)
        for model in sorted(state.facts.models.values(), key=lambda model: CLASSES[model.spec.priority_class]):
            settled = self._settled.get(model.name)
            if settled is not None and settled.holds(state, model, starts, now):
                for shard in settled.reserved:
                    self._capacity.reserve(model.name, shard)
                continue
            if model.name in round_.disturbed:
                self._settled.pop(model.name, None)
                continue
            turn = ModelReconciler(round_, model)
            turn.decide()
            if turn.decisions:
                decisions += turn.decisions
                round_.acted.add(model.name)
                self._settled.pop(model.name, None)
            else:
                capacity = state.capacity_changed if turn.lacks_capacity else None
                self._settled[model.name] = _Settled(model.touched, capacity, now, turn.due, turn.reserved, turn.queued)
        if len(self._settled) > len(state.facts.models):
            self._settled = {name: s for name, s in self._settled.items() if name in state.facts.models}
        return decisions or self._throughput.decisions(state, traffic, now)

    def _listen(self, state: State, heartbeats: Heartbeats | None) -> None:
        """Whoever fell silent, or is heard again, is looked at again: no event says so."""
        if heartbeats is self._listened:
            return
        if (heartbeats is None) != (self._listened is None):
            self._settled.clear()  # who hears nobody places nothing
        self._listened = heartbeats
        if heartbeats is None:
            return
        silent = {machine_id for machine_id, heartbeat in heartbeats.items() if heartbeat.silent_ms >= LOST_AFTER_MS}
        if silent == self._silent:
            return
        for machine_id in sorted(silent ^ self._silent):
            state.changed.mark(machine_id)
        self._silent = silent
        # Whoever waits for room may have waited for room there.
        self._settled = {name: settled for name, settled in self._settled.items() if settled.capacity is None}

    def _nodes(
        self, state: State, heartbeats: Heartbeats | None, traffic: Traffic | None, now: datetime
    ) -> list[Decision]:
        known = self._heard
        if (
            known is not None
            and known[0] is heartbeats
            and known[1] == state.nodes_changed
            and now - known[2] < LISTEN_AGAIN
        ):
            return []
        decisions = node_decisions(state, heartbeats, traffic, now, self._retire_after)
        self._heard = None if decisions else (heartbeats, state.nodes_changed, now)
        return decisions
