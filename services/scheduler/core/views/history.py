"""The diary of a model in sentences, and the answer to "why"."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from libs.events import Event, tag_of
from libs.events.model import (
    ModelAutoscaled,
    ModelDefined,
    ModelParked,
    ModelPromoted,
    ModelRemoved,
    ModelRestarted,
    ModelRolledBack,
    ModelScaled,
    ModelSlept,
    ModelStarted,
    ModelStopped,
    ModelUnparked,
    ModelUnplaced,
    ModelWoken,
)
from libs.events.questions import Happening, ModelExplained
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
    ShardFailed,
    ShardLoading,
    ShardReady,
    ShardStarting,
    ShardStopped,
)
from services.scheduler.core.inputs.heartbeats import Hearing
from services.scheduler.core.placement.capacity import Room
from services.scheduler.core.placement.placement import place
from services.scheduler.core.reconciler.demand import wanted
from services.scheduler.core.state.state import Model, State

from .views import model_view, with_progress


def _clock(at: datetime | None) -> str:
    return f"at {at:%H:%M:%S} UTC" if at is not None else "at once"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


_SENTENCES: dict[type[Event], Callable[[Any], str]] = {
    ModelDefined: lambda e: f"defined: {e.spec.scaling.min} wanted, definition {e.fingerprint}",
    ModelScaled: lambda e: f"scaled: {e.scaling.min} wanted",
    ModelRemoved: lambda e: "removed: its replicas are stopped",
    ModelUnplaced: lambda e: f"one more is wanted and nothing fits: {e.explanation.summary}",
    ModelParked: lambda e: f"parked, no more starts are tried: {e.reason}",
    ModelUnparked: lambda e: "starts are tried again",
    ModelStopped: lambda e: "stopped by an administrator" + _because(e.reason),
    ModelStarted: lambda e: "started again",
    ModelRestarted: lambda e: f"restarted {'in place' if e.in_place else 'one by one'}" + _because(e.reason),
    ModelWoken: lambda e: "somebody asks for it: it is wanted",
    ModelSlept: lambda e: f"goes to sleep: {e.reason}",
    ModelAutoscaled: lambda e: f"{e.replicas} wanted instead of {e.before}: {e.reason}",
    ModelPromoted: lambda e: f"the definition {e.fingerprint} passed its trial: {e.reason}",
    ModelRolledBack: lambda e: f"the definition {e.fingerprint} is dropped: {e.reason}",
    ReplicaPlaced: lambda e: f"{e.replica_id} goes to {e.explanation.summary} ({e.reason})",
    ReplicaReady: lambda e: f"{e.replica_id} serves at {e.url}",
    ReplicaFailed: lambda e: f"{e.replica_id} {e.reason} ({_times(e.failures)}; the next try is {_clock(e.retry_at)})",
    ReplicaDraining: lambda e: f"{e.replica_id} takes no more requests: {e.reason}",
    ReplicaStopping: lambda e: f"{e.replica_id} is stopped: {e.reason}",
    ReplicaLost: lambda e: f"another is to take the place of {e.replica_id}: {e.machine_id} is lost",
    ReplicaMeasured: lambda e: (
        f"{e.replica_id} answers one request with {e.tokens_per_s:.0f} tokens a second,"
        f" {e.estimated_tokens_per_s:.0f} were estimated"
    ),
    ReplicaRecovered: lambda e: f"{e.replica_id} is back with its engine and serves at {e.url}",
    ReplicaStopped: lambda e: f"{e.replica_id} is gone and its room is free" + _because(e.reason),
    ShardStarting: lambda e: f"{e.machine_id} takes up {e.shard_id} with {e.engine}",
    ShardLoading: lambda e: f"the engine of {e.shard_id} runs on {e.machine_id} and loads (process {e.pid})",
    ShardReady: lambda e: f"{e.shard_id} on {e.machine_id} is ready after {e.loaded_ms / 1000:.1f} s",
    ShardAdopted: lambda e: f"the agent of {e.machine_id} restarted and took {e.shard_id} over (process {e.pid})",
    ShardFailed: lambda e: f"{e.shard_id} on {e.machine_id} failed while {e.phase}: {e.reason}",
    ShardStopped: lambda e: f"{e.shard_id} on {e.machine_id} is stopped" + _because(e.reason),
}


def _times(failures: int) -> str:
    return "the first failure" if failures == 1 else f"failure {failures} in a row"


def sentence(event: Event) -> str:
    """One event for a person."""
    tell = _SENTENCES.get(type(event))
    return tell(event) if tell is not None else tag_of(event)


def explain(state: State, model: Model, hearing: Hearing | None = None) -> ModelExplained:
    """Why a model is as it is: where its replicas are and why, what keeps the next one from a place, what happened.

    Why nothing fits is worked out anew, on the room there is at this moment.
    """
    replicas = state.replicas_of(model.name)
    unplaced = None
    running = sum(r.phase in ("placed", "ready") for r in replicas)
    if running < sum(group.count for group in wanted(state, model)):
        placing = place(state, model, Room(state), hearing)
        unplaced = placing.explanation if placing.machine_id is None else model.unplaced
    story = state.stories.get(model.name)
    recent = tuple(
        Happening(at=event.at, sequence=position, sentence=sentence(event))
        for position, event in (story.events if story is not None else ())
    )
    return ModelExplained(
        model=with_progress(model_view(state, model), hearing),
        placements={replica.replica_id: replica.explanation for replica in replicas},
        unplaced=unplaced,
        recent=recent,
    )
