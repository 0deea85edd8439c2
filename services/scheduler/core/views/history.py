"""The answer to "why": where a model runs, what keeps it from a place, and what happened to it lately."""

from __future__ import annotations

from libs.events.questions import Happening, ModelExplained
from libs.events.sentences import sentence
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.placement.capacity import Capacity
from services.scheduler.core.placement.search import place
from services.scheduler.core.reconciler.demand import wanted
from services.scheduler.core.state.facts import Model
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
    history = state.histories.get(model.name)
    recent = tuple(
        Happening(at=event.at, sequence=position, sentence=sentence(event))
        for position, event in (history.events if history is not None else ())
    )
    return ModelExplained(
        model=with_progress(model_view(state, model), heartbeats),
        placements={replica.replica_id: replica.explanation for replica in replicas},
        unplaced=unplaced,
        recent=recent,
    )
