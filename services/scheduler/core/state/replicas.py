"""Folding what happens to replicas and their shards."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from libs.events import Event
from libs.events.replica import (
    ReplicaDraining,
    ReplicaFailed,
    ReplicaLost,
    ReplicaMeasured,
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
from libs.events.sources import of_library

from .facts import ENDED, Model, Orphan, Replica, ReplicaPhase, Shard, ShardPhase
from .operations import restarts, starts_anew
from .state import State

WEIGHTS_REMEMBERED = 64
"""Versions remembered per machine; an agent's cache holds fewer."""


def _placed(state: State, event: ReplicaPlaced, position: int) -> None:
    model = state.facts.models.get(event.model)
    if model is None:
        return
    # A placing is decided on the definition that stands: a profile that is gone would be a decision out of order.
    trial = model.trial
    spec = trial.spec if trial is not None and trial.fingerprint == event.fingerprint else model.spec
    profile = next((p for p in spec.profiles if p.name == event.profile), spec.profiles[0])
    replica = Replica(
        replica_id=event.replica_id,
        model=event.model,
        profile=profile,
        context_length=spec.context_length,
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
        nvlink_domain=event.nvlink_domain,
        fabric=event.fabric,
        leader_port=event.leader_port,
        allow_pickle=spec.allow_pickle,
        loras=event.loras,
    )
    state.facts.replicas[event.replica_id] = replica
    state.of_model[event.model][event.replica_id] = replica
    state.index(replica)
    for shard in event.shards:
        state.held.setdefault(shard.machine_id, {})[shard.shard_id] = shard
        state.changed[shard.machine_id] = position
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
            state.index(replica)
            for machine_id in replica.machines:
                state.changed[machine_id] = position

    return fold


def _ready(state: State, model: Model, replica: Replica, event: ReplicaReady, position: int) -> None:
    _phase(replica, "ready", event.at, position)
    replica.ready_at, replica.url, replica.reason = event.at, event.url, ""
    for machine_id in replica.machines:
        model.failed_on.pop(machine_id, None)
        machine = state.facts.machines.get(machine_id)
        if machine is None or not of_library(replica.weights):
            continue
        if replica.weights and replica.weights not in machine.weights:
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


def _measured(state: State, model: Model, replica: Replica, event: ReplicaMeasured, position: int) -> None:
    replica.measured = True


def _draining(state: State, model: Model, replica: Replica, event: ReplicaDraining, position: int) -> None:
    # Only what serves has requests to wait for; one whose machine is not heard may.
    serves = replica.phase == "ready" or (replica.phase == "lost" and replica.ready_at is not None and replica.whole)
    _phase(replica, "draining" if serves else "stopping", event.at, position)
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
    replica = state.facts.replicas.get(event.replica_id)
    state.capacity_changed = position
    if replica is None:
        for machine in state.facts.machines.values():
            for shard_id in [s for s, orphan in machine.orphans.items() if orphan.replica_id == event.replica_id]:
                del machine.orphans[shard_id]
                state.changed[machine.facts.machine_id] = position
        return
    forget(state, replica, position)


def forget(state: State, replica: Replica, position: int) -> None:
    """Nothing of it is left anywhere."""
    state.forget(replica.replica_id)
    for shard_id, shard in replica.shards.items():
        state.held.get(shard.placement.machine_id, {}).pop(shard_id, None)
        if shard.placement.machine_id in state.facts.machines:
            state.changed[shard.placement.machine_id] = position
    model = state.facts.models[replica.model]
    model.touched = position
    state.of_model[replica.model].pop(replica.replica_id, None)
    state.forget_if_over(model)
    for version in (replica.weights, *replica.loras.values()):
        state.forget_version(version)


def of_retired(state: State, machine_id: str) -> list[Replica]:
    """Replicas with a part on a machine."""
    return [replica for replica in state.facts.replicas.values() if machine_id in replica.machines]


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
        if reported in ("starting", "loading") and restarts(state, event.machine_id, event.shard_id):
            starts_anew(state, replica, event.at, position)
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
            state.capacity_changed = position
        else:
            held[event.shard_id] = shard.placement
        state.facts.models[replica.model].touched = position
        state.changed[event.machine_id] = position

    return fold


def _orphan(state: State, event: ShardEvent, phase: ShardPhase, position: int) -> None:
    machine = state.facts.machines.get(event.machine_id)
    if machine is None:
        return
    state.changed[event.machine_id] = position
    state.nodes_changed = position
    if phase in ENDED:
        if machine.orphans.pop(event.shard_id, None) is not None:
            state.capacity_changed = position
    else:
        machine.orphans[event.shard_id] = Orphan(
            replica_id=event.replica_id, model=event.model, since=event.at, position=position
        )


FOLDS: dict[type[Event], Callable[[State, Any, int], None]] = {
    ReplicaPlaced: _placed,
    ReplicaReady: _replica(_ready),
    ReplicaFailed: _replica(_failed),
    ReplicaDraining: _replica(_draining),
    ReplicaStopping: _replica(_stopping),
    ReplicaLost: _replica(_replica_lost),
    ReplicaRecovered: _replica(_recovered),
    ReplicaMeasured: _replica(_measured),
    ReplicaStopped: _replica_stopped,
    ShardStarting: _shard("starting"),
    ShardLoading: _shard("loading"),
    ShardReady: _shard("ready"),
    ShardAdopted: _shard("loading"),
    ShardFailed: _shard("failed"),
    ShardStopped: _shard("stopped"),
}
