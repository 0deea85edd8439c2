"""Where gateways send requests for a model. Pure: who writes it adds the position."""

from __future__ import annotations

from typing import Literal

from libs.events.views import (
    Endpoint,
    Route,
)
from services.scheduler.core.reconciler.demand import on_trial
from services.scheduler.core.reconciler.demand import wanted as wanted_groups
from services.scheduler.core.state.facts import Model, Replica
from services.scheduler.core.state.state import State

from .desired import GENERATION


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
            loras=tuple(sorted(replica.loras)),
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
        loras=tuple(lora.name for lora in model.spec.loras),
    )


def _asked(state: State, model: Model) -> list[Replica]:
    """Whom gateways may ask: those that are ready; while they are fewer than are wanted, those that were lost too."""
    replicas = state.replicas_of(model.name)
    heard = sum(r.phase == "ready" and not state.silent(r) for r in replicas)
    short = heard < sum(group.count for group in wanted_groups(state, model)) + on_trial(state, model)
    return [r for r in replicas if r.phase in ("ready", "draining") or (short and r.may_serve)]


def _stopped(state: State, model: Model) -> tuple[Literal["system_stopped", "model_stopped"] | None, str]:
    if state.facts.stopped is not None:
        return "system_stopped", state.facts.stopped
    if model.stopped is not None:
        return "model_stopped", model.stopped
    return None, ""
