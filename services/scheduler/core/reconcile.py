"""Wanted against actual, for every model: the difference, as events.

Level-triggered: nothing here remembers what was decided before. Whatever is missing now is decided now, and
decided in the same words by whoever decides it.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timedelta

import msgspec

from libs.events.model import ModelParked, ModelUnplaced
from libs.events.replica import ReplicaDraining, ReplicaPlaced, ReplicaRecovered, ReplicaStopped, ShardPlacement

from .checks import CHANGING
from .hearing import Hearing
from .lifecycle import PARK_AFTER, failing, next_step, overdue
from .nodes import ABSENT_AFTER, Decision, node_decisions
from .placement import Placing, Search, place
from .room import Room
from .state import Model, Replica, State

LOOK_AGAIN = timedelta(milliseconds=500)
"""A model with a replica on its way is looked at again after so long, for its timers."""
LOOK_AGAIN_FOR_ROOM = timedelta(seconds=10)
"""One that lacks room of a kind only telemetry knows about (disk, memory of other programs)."""


class _Settled(msgspec.Struct, frozen=True):
    """That nothing was to be done about a model, and how long this holds."""

    touched: int
    room: int | None
    """Its shortage was judged on this; None: nothing is lacking."""
    due: datetime | None

    def holds(self, state: State, model: Model, now: datetime) -> bool:
        return (
            self.touched == model.touched
            and (self.room is None or self.room == state.room)
            and (self.due is None or now < self.due)
        )


class Reconciler:
    """The leader's judgement. What it keeps only spares work: a new one decides the same.

    (But for one thing: why nothing fits is told anew when room was gained, not when yet more of it went.)
    """

    def __init__(self) -> None:
        self._settled: dict[str, _Settled] = {}

    def react(self, state: State, hearing: Hearing | None, now: datetime) -> list[Decision]:
        """What is to be done now, with the cause of each. Empty when there is nothing to do.

        Nodes come first and alone: the rest is decided on what they are.
        """
        decisions = node_decisions(state, hearing, now)
        if decisions:
            return decisions
        room = Room(state)
        for name, model in state.facts.models.items():
            settled = self._settled.get(name)
            if settled is not None and settled.holds(state, model, now):
                continue
            look = _Look(state, model, room, hearing, now)
            look.decide()
            if look.decisions:
                decisions += look.decisions
                self._settled.pop(name, None)
            else:
                self._settled[name] = _Settled(model.touched, state.room if look.short else None, look.due)
        if len(self._settled) > len(state.facts.models):
            self._settled = {name: s for name, s in self._settled.items() if name in state.facts.models}
        return decisions


class _Look:
    """One look at one model."""

    def __init__(self, state: State, model: Model, room: Room, hearing: Hearing | None, now: datetime) -> None:
        self.state = state
        self.model = model
        self.room = room
        self.hearing = hearing
        self.now = now
        self.replicas = state.replicas_of(model.name)
        self.wanted = 0 if model.removed else model.spec.scaling.min
        self.weights = state.weights_of(model.spec)
        self.decisions: list[Decision] = []
        self.short = False
        """More is wanted than there is room for."""
        self.due: datetime | None = None

    def decide(self) -> None:
        for replica in self.replicas:
            step = next_step(self.state, self.model, replica, self.hearing, self.now)
            if step is not None:
                self.decisions.append(step)
        if any(r.phase != "ready" for r in self.replicas):
            self.due = self.now + LOOK_AGAIN
        if self.decisions:
            return
        if self.model.failures >= PARK_AFTER and self.model.parked is None and not self.model.removed:
            self._park()
            return
        self._returning()
        if not self.decisions:
            self._converge()

    def _say(self, event: ReplicaDraining | ReplicaStopped | ReplicaRecovered | ReplicaPlaced | ModelParked) -> None:
        self.decisions.append((f"EVENTS:{self.model.touched}", event))

    def _park(self) -> None:
        reason = f"{self.model.failures} failures in a row, the last: {self.model.last_failure}"
        self._say(ModelParked(at=self.now, model=self.model.name, failures=self.model.failures, reason=reason))

    def _drain(self, replica: Replica, reason: str) -> None:
        self._say(ReplicaDraining(at=self.now, replica_id=replica.replica_id, model=self.model.name, reason=reason))

    def _outdated(self, replica: Replica) -> str | None:
        """Why another should stand in this one's place."""
        if replica.fingerprint != self.model.fingerprint:
            return "the definition changed"
        if self.weights is not None and replica.weights != self.weights:
            return f"{self.weights} replaces {replica.weights or 'no weights'}"
        for machine_id in replica.machines:
            machine = self.state.facts.machines.get(machine_id)
            if machine is not None and machine.mode == "drained":
                return f"{machine_id} is drained" + (f": {machine.reason}" if machine.reason else "")
        return None

    # replicas whose machines were lost and are back

    def _returning(self) -> None:
        serving = sum(r.phase == "ready" and self._outdated(r) is None for r in self.replicas)
        for replica in self.replicas:
            if replica.phase != "lost":
                continue
            machines = [self.state.facts.machines[m] for m in replica.machines if m in self.state.facts.machines]
            if any(m.lost for m in machines) and not replica.gone:
                continue
            back_since = max((m.here_since for m in machines), default=self.now)
            where = ", ".join(replica.machines)
            waiting = [s for s in replica.shards.values() if s.phase != "ready"]
            absent = self._absent(replica)
            if replica.gone:
                reason = f"nothing of it was left when {where} came back"
                stopped = ReplicaStopped(
                    at=self.now, replica_id=replica.replica_id, model=self.model.name, reason=reason
                )
                self._say(stopped)
            elif self.model.removed:
                self._drain(replica, "the model was removed")
            elif (outdated := self._outdated(replica)) is not None:
                self._drain(replica, outdated)
            elif serving >= self.wanted:
                self._drain(replica, f"others serve in its place since {where} was lost")
            elif len(replica.shards) > 1 or any(s.ended for s in waiting):
                self._drain(replica, f"it was not whole when {where} came back")
            elif absent and self.now - back_since >= ABSENT_AFTER:
                self._drain(replica, f"{where} came back without it")
            elif not waiting and not absent and self.hearing is not None:
                recovered = ReplicaRecovered(
                    at=self.now,
                    replica_id=replica.replica_id,
                    model=self.model.name,
                    url=next(iter(replica.shards.values())).url,
                )
                self._say(recovered)
                serving += 1
            elif (late := overdue(replica, waiting, self.hearing, self.now)) is not None:
                self._drain(replica, late)

    def _absent(self, replica: Replica) -> bool:
        """Whether a machine, which speaks, shows no process of its shard."""
        if self.hearing is None:
            return False
        for shard_id, shard in replica.shards.items():
            heard = self.hearing.get(shard.placement.machine_id)
            if heard is not None and heard.present and shard_id not in heard.shards:
                return True
        return False

    # how many, and where

    def _converge(self) -> None:
        current, outdated = list[Replica](), list[tuple[Replica, str]]()
        for replica in self.replicas:
            if replica.phase in ("placed", "ready"):
                why = self._outdated(replica)
                if why is None:
                    current.append(replica)
                else:
                    outdated.append((replica, why))
        self._drop_surplus(current)
        outdated = self._drop_outdated(current, outdated)
        missing = self.wanted - len(current)
        if missing <= 0 or self.model.parked is not None:
            return
        if self.model.retry_at is not None and self.now < self.model.retry_at:
            self.due = self.model.retry_at if self.due is None else min(self.due, self.model.retry_at)
            return
        # While old ones are replaced there is one more than wanted, not twice as many.
        at_once = min(missing, max(0, self.wanted + 1 - len(current) - len(outdated))) if outdated else missing
        search = Search(self.state, self.model, self.room, self.hearing)
        for _ in range(at_once):
            placing = search.best()
            if placing.machine_id is None:
                self._no_room(placing, current, outdated)
                return
            self._place(placing, len(current), outdated)
            search.placed(placing.machine_id)

    def _drop_surplus(self, current: list[Replica]) -> None:
        """What does not serve yet goes first, then the youngest."""
        surplus = len(current) - self.wanted
        for replica in sorted(current, key=lambda r: (r.phase == "ready", -r.placed))[: max(0, surplus)]:
            self._drain(replica, "the model was removed" if self.model.removed else f"{self.wanted} wanted")
            current.remove(replica)

    def _drop_outdated(self, current: list[Replica], outdated: list[tuple[Replica, str]]) -> list[tuple[Replica, str]]:
        """Those that serve stay until others serve in their place."""
        serving = [(r, why) for r, why in outdated if r.phase == "ready"]
        for replica, why in outdated:
            if replica.phase != "ready":
                self._drain(replica, why)
        spare = sum(r.phase == "ready" for r in current) + len(serving) - self.wanted
        spare = max(0, min(spare, len(serving)))
        for replica, why in serving[:spare]:
            self._drain(replica, "the model was removed" if self.model.removed else why)
        return serving[spare:]

    def _no_room(self, placing: Placing, current: list[Replica], outdated: list[tuple[Replica, str]]) -> None:
        self.short = True
        if CHANGING & placing.explanation.rejected.keys():
            again = self.now + LOOK_AGAIN_FOR_ROOM
            self.due = again if self.due is None else min(self.due, again)
        if self._giving_back():
            return
        starting = any(r.phase != "ready" for r in current)
        if not starting and not failing(self.state, self.model, self.now) and self._make_way(outdated):
            return
        known = self.model.unplaced
        if known is None or known.rejected.keys() != placing.explanation.rejected.keys():
            self.decisions.append(
                (
                    f"model.{self.model.name}:unplaced:{self.model.touched}",
                    ModelUnplaced(at=self.now, model=self.model.name, explanation=placing.explanation),
                )
            )

    def _giving_back(self) -> bool:
        """Replicas of this model are on their way out, on machines that can still say so."""
        return any(
            r.phase in ("draining", "stopping", "failed")
            and not any(m in self.state.facts.machines and self.state.facts.machines[m].lost for m in r.machines)
            for r in self.replicas
        ) or any(isinstance(event, ReplicaDraining) for _, event in self.decisions)

    def _make_way(self, outdated: list[tuple[Replica, str]]) -> bool:
        """Stop an outdated replica if, and only if, its successor fits in the room it gives back."""
        for replica, why in outdated:
            if place(self.state, self.model, self.room.supposing(replica.shards), self.hearing).machine_id is not None:
                self._drain(replica, f"{why}; its successor needs its room")
                return True
        return False

    def _place(self, placing: Placing, running: int, outdated: list[tuple[Replica, str]]) -> None:
        assert placing.machine_id is not None
        assert placing.profile is not None
        already = sum(isinstance(event, ReplicaPlaced) for _, event in self.decisions)
        replica_id = replica_name(self.model, already)
        shard = ShardPlacement(
            shard_id=f"{replica_id}-0",
            machine_id=placing.machine_id,
            devices=placing.devices,
            cores=placing.profile.cores,
            memory_mb=placing.profile.memory_mb or 0,
        )
        self.room.take(self.model.name, shard)
        self._say(
            ReplicaPlaced(
                at=self.now,
                replica_id=replica_id,
                model=self.model.name,
                profile=placing.profile.name,
                fingerprint=self.model.fingerprint,
                weights=placing.weights,
                shards=(shard,),
                explanation=placing.explanation,
                reason=self._reason(running + already, outdated),
            )
        )

    def _reason(self, running: int, outdated: list[tuple[Replica, str]]) -> str:
        if outdated:
            replica, why = outdated[0]
            return f"takes the place of {replica.replica_id}: {why}"
        model = self.model
        tried = any(r.placed > model.failed_position and r.phase in ("placed", "ready") for r in self.replicas)
        if not tried and failing(self.state, model, self.now):
            return f"try {model.failures + 1}"
        lost = [r for r in self.replicas if r.phase == "lost"]
        if lost:
            return f"takes the place of {lost[0].replica_id}: {lost[0].reason}"
        return f"{running} of {self.wanted} wanted were there"


def replica_name(model: Model, already: int) -> str:
    """The id of the next replica, from what the log says of the model: the same for whoever decides."""
    text = f"{model.name}:{model.born}:{model.placings + already}"
    return "r-" + base64.b32encode(hashlib.sha256(text.encode()).digest())[:8].decode().lower()
