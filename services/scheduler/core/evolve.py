"""Folding the log: each event changes the state in one place, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from libs.events import Event
from libs.events.leadership import SchedulerElected
from libs.events.library import MirrorServing, VersionAdded, VersionRemoved
from libs.events.machine import MachineRegistered
from libs.events.model import (
    ModelDefined,
    ModelEvent,
    ModelParked,
    ModelRemoved,
    ModelScaled,
    ModelUnparked,
    ModelUnplaced,
)
from libs.events.node import NodeCordoned, NodeDrained, NodeJoined, NodeLost, NodeReturned, NodeUncordoned
from libs.events.replica import (
    ReplicaDraining,
    ReplicaEvent,
    ReplicaFailed,
    ReplicaLost,
    ReplicaPlaced,
    ReplicaReady,
    ReplicaRecovered,
    ReplicaStopped,
    ReplicaStopping,
)
from libs.events.shard import (
    ShardAdopted,
    ShardEvent,
    ShardFailed,
    ShardLoading,
    ShardReady,
    ShardStarting,
    ShardStopped,
)

from .state import ENDED, Machine, Model, Orphan, Replica, ReplicaPhase, Shard, ShardPhase, State, Story

WEIGHTS_REMEMBERED = 64
"""Versions remembered per machine; an agent's cache holds fewer."""


def evolve(state: State, event: Event, position: int) -> State:
    """The state after ``event``, which stands at ``position`` in EVENTS. Changes and returns ``state``.

    Events that say nothing to the scheduler only move the position.
    """
    state.position = position
    fold = _FOLDS.get(type(event))
    if fold is not None:
        fold(state, event, position)
        if isinstance(event, ModelEvent | ReplicaEvent | ShardEvent):
            story = state.stories.get(event.model)
            if story is not None:
                story.events.append((position, event))
    return state


# machines and nodes


def _registered(state: State, event: MachineRegistered, position: int) -> None:
    machine = state.facts.machines.get(event.machine_id)
    if machine is None:
        state.facts.machines[event.machine_id] = Machine(
            facts=event, registered=position, position=position, here_since=event.at
        )
    else:
        machine.facts, machine.registered = event, position
    state.stirred[event.machine_id] = position
    state.room = position


def _touch_machine(state: State, machine_id: str, position: int) -> None:
    """Models with something on a machine are looked at again."""
    state.stirred[machine_id] = position
    for shard_id in state.held.get(machine_id, ()):
        replica = state.facts.replicas.get(shard_id.rpartition("-")[0])
        if replica is not None:
            state.facts.models[replica.model].touched = position


def _node(change: Callable[[Machine, Any], None]) -> Callable[[State, Any, int], None]:
    def fold(state: State, event: Any, position: int) -> None:
        machine = state.facts.machines.get(event.machine_id)
        if machine is None:
            return
        change(machine, event)
        machine.position = position
        state.room = position
        _touch_machine(state, event.machine_id, position)

    return fold


def _joined(machine: Machine, event: NodeJoined) -> None:
    machine.joined = True


def _lost(machine: Machine, event: NodeLost) -> None:
    machine.lost_at = event.at


def _returned(machine: Machine, event: NodeReturned) -> None:
    machine.lost_at, machine.here_since = None, event.at


def _cordoned(machine: Machine, event: NodeCordoned) -> None:
    machine.mode, machine.reason = "cordoned", event.reason


def _drained(machine: Machine, event: NodeDrained) -> None:
    machine.mode, machine.reason = "drained", event.reason


def _uncordoned(machine: Machine, event: NodeUncordoned) -> None:
    machine.mode, machine.reason = "open", ""


def _elected(state: State, event: SchedulerElected, position: int) -> None:
    state.election = position


# the library


def _touch_source(state: State, name: str, position: int) -> None:
    state.room = position
    for model in state.facts.models.values():
        if model.spec.source and model.spec.source.removeprefix("library:").partition("@")[0] == name:
            model.touched = position


def _version_added(state: State, event: VersionAdded, position: int) -> None:
    known = state.facts.library.setdefault(event.name, [])
    if event.version.version in known:
        known.remove(event.version.version)
    known.append(event.version.version)
    state.facts.versions[f"{event.name}@{event.version.version}"] = event.version
    _touch_source(state, event.name, position)


def _version_removed(state: State, event: VersionRemoved, position: int) -> None:
    known = state.facts.library.get(event.name, [])
    if event.version in known:
        known.remove(event.version)
    if not known:
        state.facts.library.pop(event.name, None)
    _touch_source(state, event.name, position)


def _mirror(state: State, event: MirrorServing, position: int) -> None:
    state.facts.mirrors[event.mirror_id] = event.url
    state.room = state.everywhere = position


# models


def _defined(state: State, event: ModelDefined, position: int) -> None:
    model = state.facts.models.get(event.model)
    if model is None:
        state.facts.models[event.model] = Model(
            name=event.model,
            spec=event.spec,
            fingerprint=event.fingerprint,
            born=position,
            created_at=event.at,
            touched=position,
        )
        state.of_model.setdefault(event.model, {})
        state.stories[event.model] = Story()
        return
    if model.removed:
        model.created_at = event.at
    model.spec, model.fingerprint, model.removed = event.spec, event.fingerprint, False
    _forgive(model)
    model.unplaced = None
    model.touched = position


def _forgive(model: Model) -> None:
    model.failures, model.failed_at, model.last_failure = 0, None, ""
    model.retry_at, model.parked, model.failed_on = None, None, {}


def _model(change: Callable[[Model, Any], None]) -> Callable[[State, Any, int], None]:
    def fold(state: State, event: Any, position: int) -> None:
        model = state.facts.models.get(event.model)
        if model is not None:
            change(model, event)
            model.touched = position

    return fold


def _scaled(model: Model, event: ModelScaled) -> None:
    model.spec = msgspec.structs.replace(model.spec, scaling=event.scaling)
    model.unplaced = None


def _unplaced(model: Model, event: ModelUnplaced) -> None:
    model.unplaced = event.explanation


def _parked(model: Model, event: ModelParked) -> None:
    model.parked = event.reason


def _unparked(model: Model, event: ModelUnparked) -> None:
    _forgive(model)


def _removed(state: State, event: ModelRemoved, position: int) -> None:
    model = state.facts.models.get(event.model)
    if model is None:
        return
    model.removed, model.unplaced, model.touched = True, None, position
    _forget_if_over(state, model)


def _forget_if_over(state: State, model: Model) -> None:
    if model.removed and not state.of_model.get(model.name):
        del state.facts.models[model.name]
        state.of_model.pop(model.name, None)
        state.stories.pop(model.name, None)


# replicas


def _placed(state: State, event: ReplicaPlaced, position: int) -> None:
    model = state.facts.models.get(event.model)
    if model is None:
        return
    # A placing is decided on the definition that stands: a profile that is gone would be a decision out of order.
    profile = next((p for p in model.spec.profiles if p.name == event.profile), model.spec.profiles[0])
    replica = Replica(
        replica_id=event.replica_id,
        model=event.model,
        profile=profile,
        context_length=model.spec.context_length,
        fingerprint=event.fingerprint,
        weights=event.weights,
        phase="placed",
        since=event.at,
        position=position,
        placed_at=event.at,
        placed=position,
        shards={
            s.shard_id: Shard(placement=s, phase="wanted", since=event.at, position=position) for s in event.shards
        },
        explanation=event.explanation,
        reason=event.reason,
    )
    state.facts.replicas[event.replica_id] = replica
    state.of_model[event.model][event.replica_id] = replica
    for shard in event.shards:
        state.held.setdefault(shard.machine_id, {})[shard.shard_id] = shard
        state.stirred[shard.machine_id] = position
    model.placings += 1
    model.unplaced = None
    model.touched = position


def _phase(replica: Replica, phase: ReplicaPhase, at: datetime, position: int) -> None:
    replica.phase, replica.since, replica.position = phase, at, position


def _replica(change: Callable[[State, Model, Replica, Any, int], None]) -> Callable[[State, Any, int], None]:
    def fold(state: State, event: Any, position: int) -> None:
        replica = state.facts.replicas.get(event.replica_id)
        if replica is not None:
            model = state.facts.models[replica.model]
            model.touched = position
            change(state, model, replica, event, position)
            for machine_id in replica.machines:
                state.stirred[machine_id] = position

    return fold


def _ready(state: State, model: Model, replica: Replica, event: ReplicaReady, position: int) -> None:
    _phase(replica, "ready", event.at, position)
    replica.ready_at, replica.url, replica.reason = event.at, event.url, ""
    for machine_id in replica.machines:
        model.failed_on.pop(machine_id, None)
        machine = state.facts.machines.get(machine_id)
        if machine is not None and replica.weights and replica.weights not in machine.weights:
            machine.weights.append(replica.weights)
            del machine.weights[:-WEIGHTS_REMEMBERED]


def _failed(state: State, model: Model, replica: Replica, event: ReplicaFailed, position: int) -> None:
    _phase(replica, "failed", event.at, position)
    replica.reason = event.reason
    if replica.placed > model.failed_position:
        model.failed_at, model.failed_position = event.at, position
    model.failures, model.retry_at, model.last_failure = event.failures, event.retry_at, event.reason
    shards = replica.shards.values()
    for shard in [s for s in shards if s.phase == "failed"] or [s for s in shards if s.phase != "ready"]:
        machine_id = shard.placement.machine_id
        model.failed_on[machine_id] = model.failed_on.get(machine_id, 0) + 1


def _draining(state: State, model: Model, replica: Replica, event: ReplicaDraining, position: int) -> None:
    # Only what serves has requests to wait for.
    _phase(replica, "draining" if replica.phase == "ready" else "stopping", event.at, position)
    replica.reason = event.reason


def _stopping(state: State, model: Model, replica: Replica, event: ReplicaStopping, position: int) -> None:
    _phase(replica, "stopping", event.at, position)
    replica.reason = event.reason


def _replica_lost(state: State, model: Model, replica: Replica, event: ReplicaLost, position: int) -> None:
    _phase(replica, "lost", event.at, position)
    replica.reason = f"{event.machine_id} is lost"


def _recovered(state: State, model: Model, replica: Replica, event: ReplicaRecovered, position: int) -> None:
    _phase(replica, "ready", event.at, position)
    replica.url, replica.reason = event.url, ""
    if replica.ready_at is None:
        replica.ready_at = event.at


def _replica_stopped(state: State, event: ReplicaStopped, position: int) -> None:
    replica = state.facts.replicas.pop(event.replica_id, None)
    state.room = position
    if replica is None:
        for machine in state.facts.machines.values():
            for shard_id in [s for s, orphan in machine.orphans.items() if orphan.replica_id == event.replica_id]:
                del machine.orphans[shard_id]
        return
    for shard_id, shard in replica.shards.items():
        state.held.get(shard.placement.machine_id, {}).pop(shard_id, None)
        state.stirred[shard.placement.machine_id] = position
    model = state.facts.models[replica.model]
    model.touched = position
    state.of_model[replica.model].pop(event.replica_id, None)
    _forget_if_over(state, model)


# shards


def _shard(phase: ShardPhase) -> Callable[[State, Any, int], None]:
    def fold(state: State, event: Any, position: int) -> None:
        replica = state.facts.replicas.get(event.replica_id)
        shard = replica.shards.get(event.shard_id) if replica is not None else None
        reported = phase
        if isinstance(event, ShardAdopted) and (event.ready or (shard is not None and shard.phase == "ready")):
            # A busy engine may not answer its agent's first question; what comes of it the agent says.
            reported = "ready"
        if replica is None or shard is None or shard.placement.machine_id != event.machine_id:
            _orphan(state, event, reported, position)
            return
        if reported != shard.phase:
            # An agent that says the same again, as after a restart, has made no progress.
            shard.since = event.at
        shard.phase, shard.position = reported, position
        shard.url = getattr(event, "url", shard.url)
        shard.reason = getattr(event, "reason", "")
        shard.failed_in = getattr(event, "phase", "")
        held = state.held.setdefault(event.machine_id, {})
        if shard.ended:
            held.pop(event.shard_id, None)
            state.room = position
        else:
            held[event.shard_id] = shard.placement
        state.facts.models[replica.model].touched = position
        state.stirred[event.machine_id] = position

    return fold


def _orphan(state: State, event: ShardEvent, phase: ShardPhase, position: int) -> None:
    machine = state.facts.machines.get(event.machine_id)
    if machine is None:
        return
    state.stirred[event.machine_id] = position
    if phase in ENDED:
        if machine.orphans.pop(event.shard_id, None) is not None:
            state.room = position
    else:
        machine.orphans[event.shard_id] = Orphan(
            replica_id=event.replica_id, model=event.model, since=event.at, position=position
        )


_FOLDS: dict[type[Event], Callable[[State, Any, int], None]] = {
    SchedulerElected: _elected,
    MachineRegistered: _registered,
    NodeJoined: _node(_joined),
    NodeLost: _node(_lost),
    NodeReturned: _node(_returned),
    NodeCordoned: _node(_cordoned),
    NodeDrained: _node(_drained),
    NodeUncordoned: _node(_uncordoned),
    VersionAdded: _version_added,
    VersionRemoved: _version_removed,
    MirrorServing: _mirror,
    ModelDefined: _defined,
    ModelScaled: _model(_scaled),
    ModelRemoved: _removed,
    ModelUnplaced: _model(_unplaced),
    ModelParked: _model(_parked),
    ModelUnparked: _model(_unparked),
    ReplicaPlaced: _placed,
    ReplicaReady: _replica(_ready),
    ReplicaFailed: _replica(_failed),
    ReplicaDraining: _replica(_draining),
    ReplicaStopping: _replica(_stopping),
    ReplicaLost: _replica(_replica_lost),
    ReplicaRecovered: _replica(_recovered),
    ReplicaStopped: _replica_stopped,
    ShardStarting: _shard("starting"),
    ShardLoading: _shard("loading"),
    ShardReady: _shard("ready"),
    ShardAdopted: _shard("loading"),
    ShardFailed: _shard("failed"),
    ShardStopped: _shard("stopped"),
}
