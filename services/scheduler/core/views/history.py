"""The answer to "why": where a model runs, what keeps it from a place, and what happened to it lately."""

from __future__ import annotations

import msgspec

from libs.events.questions import Happening, ModelExplained
from libs.events.sentences import sentence
from libs.events.views import ReplicaView
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.placement.capacity import Capacity
from services.scheduler.core.placement.search import place
from services.scheduler.core.reconciler.demand import wanted
from services.scheduler.core.state.facts import Model, Replica
from services.scheduler.core.state.state import State

from .model_views import model_view, with_progress


def explain(state: State, model: Model, heartbeats: Heartbeats | None = None) -> ModelExplained:
    """Why a model is as it is: where its replicas are and why, what keeps the next one from a place, what happened.

    Why nothing fits is worked out anew, on the room there is at this moment.
    """
    replicas = state.replicas_of(model.name)
    unplaced = None
    running = sum(r.phase in ("placed", "ready") for r in replicas)
    if running < sum(group.count for group in wanted(state, model)):
        placement = place(state, model, Capacity(state), heartbeats)
        unplaced = placement.explanation if placement.machine_id is None else model.unplaced
    view = with_progress(model_view(state, model), heartbeats)
    if model.unplaced is not None:
        view = msgspec.structs.replace(view, replicas=tuple(_kept(state, model, r) for r in view.replicas))
        if unplaced is None and any(_leaves(state, model, replica) for replica in replicas):
            unplaced = model.unplaced
    history = state.histories.get(model.name)
    recent = tuple(
        Happening(at=event.at, sequence=position, sentence=sentence(event))
        for position, event in (history.events if history is not None else ())
    )
    return ModelExplained(
        model=view,
        placements={replica.replica_id: replica.explanation for replica in replicas},
        unplaced=unplaced,
        recent=recent,
    )


def _leaves(state: State, model: Model, replica: Replica) -> str:
    """Why a replica that runs is to go once another serves in its place; empty: it is not."""
    if replica.phase not in ("placed", "ready"):
        return ""
    for machine_id in replica.machines:
        machine = state.facts.machines.get(machine_id)
        if machine is not None and machine.mode in ("drained", "lent"):
            how = "being drained" if machine.mode == "drained" else "lent"
            return f"{machine_id} is {how}{f' ({machine.reason})' if machine.reason else ''}"
    older = replica.fingerprint != model.fingerprint and model.trial is None
    return "runs an older definition" if older else ""


def _kept(state: State, model: Model, shown: ReplicaView) -> ReplicaView:
    """With why it is still there though it is to go: its successor has no place."""
    why = _leaves(state, model, state.facts.replicas[shown.replica_id])
    if not why or model.unplaced is None:
        return shown
    return msgspec.structs.replace(shown, reason=f"{why}; it stays because nothing else fits: {model.unplaced.summary}")
