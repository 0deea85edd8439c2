"""What the views show, derived from the state. Pure: who writes them adds the generation and the sealed keys."""

from __future__ import annotations

from typing import Literal

import msgspec

from libs.events.sources import kept_as, of_library, on_machines
from libs.events.views import (
    Endpoint,
    LoraWanted,
    ModelView,
    ReplicaView,
    Route,
    ShardWanted,
    WeightsWanted,
)
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.reconciler.demand import on_trial, why_none
from services.scheduler.core.reconciler.demand import wanted as wanted_groups
from services.scheduler.core.state.state import (
    Model,
    Replica,
    Shard,
    State,
)

GENERATION = 1
"""A replica has one life, so it has one engine key."""


def route(state: State, model: Model) -> Route:
    """Where gateways send: replicas that are ready; those that finish what they have are flagged."""
    endpoints = tuple(
        Endpoint(
            replica_id=replica.replica_id,
            url=replica.url,
            machine_id=replica.machines[0],
            served_name=model.name,
            generation=GENERATION,
            parallel=replica.profile.parallel,
            draining=replica.phase == "draining",
            weight=replica.profile.weight,
            canary=model.trial is not None and replica.fingerprint == model.trial.fingerprint,
            adapters=tuple(sorted(replica.adapters)),
            engine=replica.profile.engine,
            silent=state.silent(replica),
        )
        for replica in _asked(state, model)
    )
    stopped, reason = _stopped(state, model)
    trial = model.trial
    canary = trial.spec.canary if trial is not None else None
    tried = any(e.canary and not e.draining for e in endpoints)
    return Route(
        model=model.name,
        aliases=model.spec.aliases,
        context_length=model.spec.context_length,
        max_output_tokens=model.spec.max_output_tokens,
        capabilities=model.spec.capabilities,
        created_at=model.created_at,
        endpoints=endpoints,
        on_demand=model.spec.scaling.on_demand,
        stopped=stopped,
        stopped_reason=reason,
        canary_percent=canary.percent if canary is not None and tried else 0,
        fallbacks=model.spec.fallbacks,
        adapters=tuple(adapter.name for adapter in model.spec.adapters),
    )


def _asked(state: State, model: Model) -> list[Replica]:
    """Whom gateways may ask: those that are ready; while they are fewer than are wanted, those that were lost too."""
    replicas = state.replicas_of(model.name)
    heard = sum(r.phase == "ready" and not state.silent(r) for r in replicas)
    short = heard < sum(group.count for group in wanted_groups(state, model)) + on_trial(state, model)
    return [r for r in replicas if r.phase in ("ready", "draining") or (short and _may_serve(r))]


def _may_serve(replica: Replica) -> bool:
    return replica.phase == "lost" and replica.ready_at is not None and replica.whole


def _stopped(state: State, model: Model) -> tuple[Literal["system_stopped", "model_stopped"] | None, str]:
    if state.facts.stopped is not None:
        return "system_stopped", state.facts.stopped
    if model.stopped is not None:
        return "model_stopped", model.stopped
    return None, ""


def wanted_on(state: State, machine_id: str) -> tuple[ShardWanted, ...]:
    """The whole of what should run on a machine, oldest first; keys not sealed in yet.

    What a lost machine ran stays in its list until something is decided about it: a machine that only lost
    its voice for a while must not stop an engine that may be wanted when it is heard again.
    """
    found = []
    for shard_id in state.held.get(machine_id, ()):
        replica = state.facts.replicas[shard_id.rpartition("-")[0]]
        shard = replica.shards[shard_id]
        if _should_run(replica):
            found.append((replica.placed, _shard(state, replica, shard)))
    return tuple(shard for _, shard in sorted(found, key=lambda pair: (pair[0], pair[1].shard_id)))


def _should_run(replica: Replica) -> bool:
    if replica.phase == "lost":
        # Of several shards one is not there: those that start do so together or not at all, those that serve may go on.
        return len(replica.shards) == 1 or _may_serve(replica)
    return replica.phase in ("placed", "ready", "draining")


def _shard(state: State, replica: Replica, shard: Shard) -> ShardWanted:
    profile = replica.profile
    loras = [(name, _weights(state, version)) for name, version in sorted(replica.adapters.items())]
    return ShardWanted(
        shard_id=shard.placement.shard_id,
        replica_id=replica.replica_id,
        model=replica.model,
        served_name=replica.model,
        profile=profile.name,
        engine=profile.engine,
        generation=GENERATION,
        devices=shard.placement.devices,
        cores=shard.placement.cores,
        memory_mb=shard.placement.memory_mb,
        context_length=replica.context_length,
        parallel=profile.parallel,
        args=profile.args,
        env=profile.env,
        startup_timeout_s=profile.startup_timeout_s,
        weights=_weights(state, replica.weights),
        loras=tuple(LoraWanted(name=name, weights=weights) for name, weights in loras if weights is not None),
        draining=replica.phase == "draining",
        rank=list(replica.shards).index(shard.placement.shard_id),
        ranks=len(replica.shards),
        leader_address=_address(state, replica.machines[0]) if len(replica.shards) > 1 else "",
        leader_port=replica.leader_port,
        adapters=shard.placement.adapters,
        nvlink_domain=replica.nvlink_domain,
        tp=profile.tp,
        pp=profile.pp,
        allow_pickle=replica.allow_pickle,
    )


def _weights(state: State, name: str) -> WeightsWanted | None:
    if not of_library(name):
        kept, _, commit = (name, "", "") if on_machines(name) else kept_as(name).partition("@")
        return WeightsWanted(name=kept, version=commit, files=(), mirrors=(), source=name)
    version = state.facts.versions.get(name)
    if version is None:
        return None
    return WeightsWanted(
        name=version.name,
        version=version.version,
        files=version.files,
        mirrors=tuple(url for _, url in sorted(state.facts.mirrors.items())),
    )


def _address(state: State, machine_id: str) -> str:
    machine = state.facts.machines.get(machine_id)
    return machine.facts.address if machine is not None else ""


def model_view(state: State, model: Model) -> ModelView:
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
        why = f"the next try is at {model.retry_at:%H:%M:%S} UTC, after: {model.last_failure}"
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
    said = (
        f"{what} on {machine_id}"
        for machine_id in replica.machines
        if (heard := heartbeats.get(machine_id)) is not None and heard.present
        for shard_id, what in heard.starting.items()
        if shard_id.rpartition("-")[0] == replica.replica_id
    )
    return "; ".join(said)


STARTING = ("wanted", "starting", "loading")
_PROGRESS = ("failed", "stopped", *STARTING, "ready")
"""Of several shards the one that is furthest behind says where the replica stands."""
