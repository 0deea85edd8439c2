"""A model's turn in a round: what is decided on, what was decided, and what every part of the reconciler asks of it."""

from __future__ import annotations

from datetime import datetime, timedelta

from libs.events import Event
from libs.events.replica import ReplicaDraining, ShardPlacement
from libs.fit.health import must_leave
from services.scheduler.core.state.facts import Model, Replica

from .demand import wanted
from .nodes import Decision
from .round import Round

RECHECK_FOR_USE = timedelta(seconds=1)
"""After so long a model is looked at again of which what gateways do may change what is wanted."""


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
