"""Folding what happens to models: definitions, how many are wanted, trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from libs.events import Event
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

from .facts import Model, Trial
from .state import History, State

DECLARED = "it is declared stopped"


def _defined(state: State, event: ModelDefined, position: int) -> None:
    model = state.facts.models.get(event.model)
    if model is None or model.removed:
        # Of one that was removed and has replicas left nothing holds any more but the numbers in its replicas' names.
        state.facts.models[event.model] = Model(
            name=event.model,
            spec=event.spec,
            fingerprint=event.fingerprint,
            born=model.born if model is not None else position,
            created_at=event.at,
            touched=position,
            placings=model.placings if model is not None else 0,
            stopped=DECLARED if event.spec.stopped else None,
        )
        state.of_model.setdefault(event.model, {})
        state.histories.setdefault(event.model, History())
        return
    if event.spec.stopped != model.declared.stopped:
        # Only where the declaration changes: one said again takes back no command.
        model.stopped, model.awake = (DECLARED, False) if event.spec.stopped else (None, model.awake)
    if _is_tried(state, model, event):
        model.trial = Trial(spec=event.spec, fingerprint=event.fingerprint, since=event.at, position=position)
    else:
        model.spec, model.fingerprint, model.trial = event.spec, event.fingerprint, None
    _forgive(model)
    model.unplaced = None
    model.touched = position


def _is_tried(state: State, model: Model, event: ModelDefined) -> bool:
    """A changed definition is tried beside the old one if it asks for it and there is one that serves."""
    if event.spec.canary is None or event.fingerprint == model.fingerprint:
        return False
    return any(r.phase == "ready" for r in state.of_model[model.name].values())


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
    if model.trial is not None:
        model.trial.spec = msgspec.structs.replace(model.trial.spec, scaling=event.scaling)
    model.unplaced = model.scaled = model.stopped = None


def _autoscaled(model: Model, event: ModelAutoscaled) -> None:
    model.scaled, model.scaled_at = event.replicas, event.at


def _unplaced(state: State, event: ModelUnplaced, position: int) -> None:
    model = state.facts.models.get(event.model)
    if model is None:
        return
    model.unplaced, model.touched = event.explanation, position
    for replica in state.of_model[model.name].values():
        for machine_id in replica.machines:
            machine = state.facts.machines.get(machine_id)
            if machine is not None and machine.mode != "open":
                state.changed[machine_id] = position  # it says what has nowhere to go


def _parked(model: Model, event: ModelParked) -> None:
    model.parked = event.reason


def _unparked(model: Model, event: ModelUnparked) -> None:
    _forgive(model)


def _stopped(model: Model, event: ModelStopped) -> None:
    model.stopped, model.unplaced, model.awake = event.reason, None, False


def _started(model: Model, event: ModelStarted) -> None:
    model.stopped = None
    _forgive(model)


def _woken(model: Model, event: ModelWoken) -> None:
    model.awake, model.asked_at = True, event.at


def _slept(model: Model, event: ModelSlept) -> None:
    model.awake, model.unplaced = False, None


def _promoted(model: Model, event: ModelPromoted) -> None:
    if model.trial is not None and model.trial.fingerprint == event.fingerprint:
        model.spec, model.fingerprint, model.trial = model.trial.spec, event.fingerprint, None
        model.unplaced = None


def _rolled_back(model: Model, event: ModelRolledBack) -> None:
    if model.trial is not None and model.trial.fingerprint == event.fingerprint:
        model.trial, model.unplaced = None, None
        _forgive(model)


def _restarted(state: State, event: ModelRestarted, position: int) -> None:
    model = state.facts.models.get(event.model)
    if model is not None:
        model.restarted, model.in_place, model.touched = position, event.in_place, position
        _forgive(model)


def _removed(state: State, event: ModelRemoved, position: int) -> None:
    model = state.facts.models.get(event.model)
    if model is None:
        return
    model.removed, model.unplaced, model.trial, model.touched = True, None, None, position
    state.forget_if_over(model)


FOLDS: dict[type[Event], Callable[[State, Any, int], None]] = {
    ModelDefined: _defined,
    ModelScaled: _model(_scaled),
    ModelAutoscaled: _model(_autoscaled),
    ModelRemoved: _removed,
    ModelUnplaced: _unplaced,
    ModelParked: _model(_parked),
    ModelUnparked: _model(_unparked),
    ModelStopped: _model(_stopped),
    ModelStarted: _model(_started),
    ModelWoken: _model(_woken),
    ModelSlept: _model(_slept),
    ModelRestarted: _restarted,
    ModelPromoted: _model(_promoted),
    ModelRolledBack: _model(_rolled_back),
}
