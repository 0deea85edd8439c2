"""Commands: each becomes an event, changes nothing, or is refused with every reason at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from libs.events import Command, Event, tag_of
from libs.events.commands import (
    CordonNode,
    DefineModel,
    DrainNode,
    RemoveModel,
    RestartModel,
    ScaleModel,
    UncordonNode,
)
from libs.events.model import ModelDefined, ModelRemoved, ModelScaled, ModelUnparked
from libs.events.node import NodeCordoned, NodeDrained, NodeUncordoned
from libs.events.refusal import Refused

from .catalog import fingerprint, problems, scaling_problems
from .state import Machine, Model, State


def decide(state: State, command: Command, command_id: str, now: datetime) -> Event | None:
    """The event a command causes; None if it changes nothing. Raises Refused. Does not change ``state``."""
    answer = _COMMANDS.get(type(command))
    if answer is None:
        raise Refused.one("type", f"the scheduler does not know the command {tag_of(command)}")
    return answer(state, command, now)


def _known(kind: str, name: str, names: Iterable[str]) -> str:
    all_names = sorted(names)
    near = difflib.get_close_matches(name, all_names, n=1)
    if near:
        return f"there is no {kind} {name!r}: did you mean {near[0]!r}?"
    shown = ", ".join(all_names[:20]) + (" …" if len(all_names) > 20 else "")
    return f"there is no {kind} {name!r}; there is {shown or 'none'}"


def model_named(state: State, name: str) -> Model:
    """Raises Refused, naming what there is."""
    model = state.facts.models.get(name)
    if model is None or model.removed:
        raise Refused.one(
            "model", _known("model", name, (m.name for m in state.facts.models.values() if not m.removed))
        )
    return model


def _machine_named(state: State, machine_id: str) -> Machine:
    machine = state.facts.machines.get(machine_id)
    if machine is None:
        raise Refused.one("machine_id", _known("node", machine_id, state.facts.machines))
    return machine


def _define(state: State, command: DefineModel, now: datetime) -> Event | None:
    found = problems(state, command.spec)
    if found:
        raise Refused(found)
    model = state.facts.models.get(command.spec.name)
    if model is not None and not model.removed and model.spec == command.spec:
        return None
    return ModelDefined(at=now, model=command.spec.name, spec=command.spec, fingerprint=fingerprint(command.spec))


def _remove(state: State, command: RemoveModel, now: datetime) -> Event | None:
    return ModelRemoved(at=now, model=model_named(state, command.model).name)


def _scale(state: State, command: ScaleModel, now: datetime) -> Event | None:
    model = model_named(state, command.model)
    found = list(scaling_problems(command.scaling, "scaling."))
    if found:
        raise Refused(found)
    if model.spec.scaling == command.scaling:
        return None
    return ModelScaled(at=now, model=model.name, scaling=command.scaling)


def _restart(state: State, command: RestartModel, now: datetime) -> Event | None:
    model = model_named(state, command.model)
    if model.parked is None and model.retry_at is None:
        return None
    return ModelUnparked(at=now, model=model.name)


def _cordon(state: State, command: CordonNode, now: datetime) -> Event | None:
    machine = _machine_named(state, command.machine_id)
    if machine.mode == "cordoned" and machine.reason == command.reason:
        return None
    return NodeCordoned(at=now, machine_id=command.machine_id, reason=command.reason)


def _drain(state: State, command: DrainNode, now: datetime) -> Event | None:
    machine = _machine_named(state, command.machine_id)
    if machine.mode == "drained" and machine.reason == command.reason:
        return None
    return NodeDrained(at=now, machine_id=command.machine_id, reason=command.reason)


def _uncordon(state: State, command: UncordonNode, now: datetime) -> Event | None:
    if _machine_named(state, command.machine_id).mode == "open":
        return None
    return NodeUncordoned(at=now, machine_id=command.machine_id)


_COMMANDS: dict[type[Command], Callable[[State, Any, datetime], Event | None]] = {
    DefineModel: _define,
    RemoveModel: _remove,
    ScaleModel: _scale,
    RestartModel: _restart,
    CordonNode: _cordon,
    DrainNode: _drain,
    UncordonNode: _uncordon,
}
