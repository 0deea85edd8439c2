"""What is shown of models and their replicas."""

from __future__ import annotations

import msgspec

from libs.events.times import rfc3339
from libs.events.views import (
    ModelView,
    ReplicaView,
)
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.reconciler.demand import on_trial, why_none
from services.scheduler.core.reconciler.demand import wanted as wanted_groups
from services.scheduler.core.state.facts import Model, Replica
from services.scheduler.core.state.state import State


def model_view(state: State, model: Model) -> ModelView:
    """A model and its replicas, as people are shown them."""
    replicas = state.replicas_of(model.name)
    ready = sum(r.phase == "ready" for r in replicas)
    wanted = sum(group.count for group in wanted_groups(state, model)) + on_trial(state, model)
    word, reason = _model_state(state, model, replicas, ready, wanted)
    return ModelView(
        model=model.name,
        wanted=wanted,
        ready=ready,
        state=word,
        fingerprint=model.fingerprint,
        reason=reason,
        replicas=tuple(_replica_view(state, model, replica) for replica in replicas),
    )


def _model_state(state: State, model: Model, replicas: list[Replica], ready: int, wanted: int) -> tuple[str, str]:
    if model.removed:
        return "removing", ""
    if wanted == 0:
        asleep = model.spec.scaling.on_demand and model.stopped is None and state.facts.stopped is None
        return "asleep" if asleep else "stopped", why_none(state, model)
    if ready >= wanted:
        trial = model.trial
        if trial is not None:
            return "ready", f"the definition {trial.fingerprint} is on trial"
        return "ready", ""
    why = ""
    if model.parked is not None:
        why = f"parked: {model.parked}; `llmgw model restart {model.name}` tries again"
    elif model.unplaced is not None:
        why = model.unplaced.summary
    elif model.failures and model.retry_at is not None and not any(r.phase == "placed" for r in replicas):
        why = f"the next try is at {rfc3339(model.retry_at)}, after: {model.last_failure}"
    elif (state.starting or state.leaving) and sum(r.phase in ("placed", "ready") for r in replicas) < wanted:
        why = "it waits for its turn: other replicas are starting or leaving"
    if ready:
        return "degraded", why
    if model.parked is not None:
        return "parked", why
    if any(r.phase == "placed" for r in replicas):
        return "starting", why
    if model.unplaced is not None:
        return "unplaced", why
    return "waiting", why


def _replica_view(state: State, model: Model, replica: Replica) -> ReplicaView:
    reason = replica.reason
    if replica.phase == "ready" and state.silent(replica):
        reason = "its machine is not heard; its engine may serve"
    if replica.phase in ("placed", "ready") and replica.fingerprint != model.fingerprint:
        tried = model.trial is not None and replica.fingerprint == model.trial.fingerprint
        reason = "on trial" if tried else "runs an older definition"
    phase: str = replica.phase
    if phase == "placed":
        phase = min((s.phase for s in replica.shards.values()), key=_PROGRESS.index)
    return ReplicaView(
        replica_id=replica.replica_id,
        profile=replica.profile.name,
        state=phase,
        machines=replica.machines,
        url=replica.url or None,
        reason=reason,
    )


def with_progress(view: ModelView, heartbeats: Heartbeats | None) -> ModelView:
    """A model's view with how far each start is, as its machines said last."""
    replicas = tuple(
        msgspec.structs.replace(replica, progress=_progress(replica, heartbeats or {})) for replica in view.replicas
    )
    return msgspec.structs.replace(view, replicas=replicas)


def _progress(replica: ReplicaView, heartbeats: Heartbeats) -> str:
    # A machine's last sample is older than its fact that the engine is ready.
    if replica.state not in STARTING:
        return ""
    parts = (
        f"{what} on {machine_id}"
        for machine_id in replica.machines
        if (heartbeat := heartbeats.get(machine_id)) is not None and heartbeat.present
        for shard_id, what in heartbeat.starting.items()
        if shard_id.rpartition("-")[0] == replica.replica_id
    )
    return "; ".join(parts)


STARTING = ("wanted", "starting", "loading")
_PROGRESS = ("failed", "stopped", *STARTING, "ready")
"""Of several shards the one that is furthest behind says where the replica stands."""
