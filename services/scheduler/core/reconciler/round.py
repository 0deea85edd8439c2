"""One round of decisions: what it is decided on, how much may start in it, and each model's turn in it.

What starts takes disk, network and CPU from what serves, and a site that has too little of them gets nothing up at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from libs.events import Event
from libs.events.replica import ReplicaDraining, ShardPlacement
from libs.fit.health import must_leave
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.inputs.traffic import Traffic
from services.scheduler.core.placement.candidates import Tables
from services.scheduler.core.placement.capacity import Capacity
from services.scheduler.core.state.facts import Model, Replica
from services.scheduler.core.state.state import State

from .demand import wanted
from .nodes import Decision

AT_ONCE_LEAST = 32
AT_ONCE_SHARE = 0.25
"""Of the machines there are: a fleet fills in a few waves, and its mirrors serve a few hundred at once."""
ON_ONE_MACHINE = 4
"""Or as many as it has GPUs: no more fit there, and one beside the other they would break up other machines."""
COUNTS_FOR = timedelta(minutes=5)
"""A start that takes longer waits for its weights, and is in nobody's way."""
RECHECK_FOR_USE = timedelta(seconds=1)
"""After so long a model is looked at again of which what gateways do may change what is wanted."""


class Starts:
    """Those under way, and those a round of decisions has added."""

    def __init__(self, state: State, now: datetime, at_once: int) -> None:
        self._machines = state.facts.machines
        self._most = at_once or max(AT_ONCE_LEAST, int(AT_ONCE_SHARE * len(self._machines)))
        self._count = 0
        self._on: Counter[str] = Counter()
        for replica in state.starting.values():
            if now - replica.since < COUNTS_FOR:
                self.add(replica.machines)

    def add(self, machines: Iterable[str]) -> None:
        """Another begins, on these machines."""
        self._count += 1
        self._on.update(machines)

    @property
    def full(self) -> bool:
        """No other may begin, wherever."""
        return self._count >= self._most

    def full_on(self, machines: Iterable[str]) -> bool:
        """No other may begin on one of these machines."""
        return any(self._on[m] >= max(ON_ONE_MACHINE, len(self._machines[m].facts.gpus)) for m in machines)


class Round(msgspec.Struct):
    """One round of decisions."""

    state: State
    capacity: Capacity
    starts: Starts
    tables: Tables
    heartbeats: Heartbeats | None
    traffic: Traffic | None
    now: datetime
    acted: set[str] = msgspec.field(default_factory=set)
    """Models something was decided about."""
    disturbed: set[str] = msgspec.field(default_factory=set)
    """Models that were made to give room: not to be looked at on the state before that."""
    leaving: list[Replica] = msgspec.field(default_factory=list)
    """Replicas that this round told to go, or gave a successor."""
    replaced: list[Replica] | None = None
    """Replicas that leave as soon as their successors, which are starting, serve; None: not looked up yet."""


class Turn:
    """One model in one round: what it is decided on, and what was decided about it so far."""

    def __init__(self, round_: Round, model: Model) -> None:
        self.round = round_
        self.state = round_.state
        self.now = round_.now
        self.heartbeats = round_.heartbeats
        self.model = model
        self.replicas = self.state.replicas_of(model.name)
        self.groups = wanted(self.state, model)
        self.wanted = sum(group.count for group in self.groups)
        self.weights = {model.fingerprint: self.state.weights_of(model.spec)}
        self.loras = {model.fingerprint: self.state.loras_of(model.spec)}
        if model.trial is not None:
            self.loras[model.trial.fingerprint] = self.state.loras_of(model.trial.spec)
            self.weights[model.trial.fingerprint] = self.state.weights_of(model.trial.spec)
        self.decisions: list[Decision] = []
        self.lacks_capacity = False
        """More is wanted than there is room for."""
        self.queued = False
        """It waits until fewer replicas are starting."""
        self.due: datetime | None = None
        """When it is to be looked at again, though nothing happens; None: not before something does."""
        self.reserved: tuple[ShardPlacement, ...] = ()
        """Room it waits for: what is free of it already is not for models that come after."""

    def recheck_after(self, after: timedelta) -> None:
        """Nothing that is decided now holds for longer: the model is looked at again then, though nothing happens."""
        again = self.now + after
        self.due = again if self.due is None else min(self.due, again)

    def recheck_for_use(self) -> None:
        """``recheck_after`` a time in which what gateways do may have changed."""
        self.recheck_after(RECHECK_FOR_USE)

    def serves(self, replica: Replica) -> bool:
        """It is ready, and so says its machine."""
        return replica.phase == "ready" and not self.state.silent(replica)

    def emit(self, event: Event) -> None:
        """Decide an event, caused by the last one that matters to the model."""
        self.decisions.append((f"EVENTS:{self.model.touched}", event))

    def drain(self, replica: Replica, reason: str) -> None:
        """Decide that a replica goes: it finishes what it has, and its capacity counts as coming free."""
        self.round.leaving.append(replica)
        self.emit(ReplicaDraining(at=self.now, replica_id=replica.replica_id, model=replica.model, reason=reason))

    def outdated(self, replica: Replica) -> str | None:
        """Why another should stand in this one's place."""
        if replica.fingerprint not in self.weights:
            return "the definition changed"
        if replica.placed < self.model.restarted:
            return "restarted by hand"
        weights = self.weights[replica.fingerprint]
        if weights is not None and replica.weights != weights:
            return f"{weights} replaces {replica.weights or 'no weights'}"
        for name, version in self.loras[replica.fingerprint].items():
            if replica.loras.get(name) != version:
                return f"{version} replaces {replica.loras.get(name, 'nothing')} as the adapter {name}"
        for shard in replica.shards.values():
            machine_id = shard.placement.machine_id
            machine = self.state.facts.machines.get(machine_id)
            if machine is None:
                continue
            if machine.mode in ("drained", "lent"):
                return f"{machine_id} is {machine.mode}" + (f": {machine.reason}" if machine.reason else "")
            if shard.placement.devices:
                for gpu in machine.facts.gpus:
                    if gpu.problems and gpu.uuid in shard.placement.devices and (why := must_leave(gpu)):
                        return f"GPU {gpu.index} of {machine_id} is out of use: {why}"
        return None
