"""Commands: each becomes an event, changes nothing, or is refused with every reason at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from libs.events import Command, Event, tag_of
from libs.events.commands import (
    CapRack,
    CordonNode,
    DefineModel,
    DrainNode,
    GiveErrand,
    LendNode,
    PromoteModel,
    ReclaimNode,
    RemoveModel,
    RestartModel,
    RetireNode,
    RollBackModel,
    ScaleModel,
    StartModel,
    StartSystem,
    StopModel,
    StopSystem,
    UncordonNode,
    WakeModel,
)
from libs.events.model import (
    ModelDefined,
    ModelPromoted,
    ModelRemoved,
    ModelRestarted,
    ModelRolledBack,
    ModelScaled,
    ModelStarted,
    ModelStopped,
    ModelUnparked,
    ModelWoken,
)
from libs.events.node import (
    NodeCordoned,
    NodeDrained,
    NodeLent,
    NodeReclaimed,
    NodeRetired,
    NodeUncordoned,
)
from libs.events.refusal import FEW, Refused
from libs.events.system import RackCapped, SystemStarted, SystemStopped
from services.scheduler.core.placement.capacity import Capacity
from services.scheduler.core.reconciler.nodes import still_running
from services.scheduler.core.state import operations
from services.scheduler.core.state.facts import Machine, Model
from services.scheduler.core.state.state import State

from .validation import fingerprint, problems, scaling_problems

ASKED_AGAIN = timedelta(minutes=1)
"""A wake said again within so long of the last is not worth another line in the log."""


def decide(state: State, command: Command, command_id: str, now: datetime) -> Event | None:
    """The event a command causes; None if it changes nothing. Raises Refused. Does not change ``state``."""
    answer = _COMMANDS.get(type(command))
    if answer is None:
        raise Refused.one("type", f"the scheduler does not know the command {tag_of(command)}")
    return answer(state, command, now)


def _known(kind: str, name: str, names: Iterable[str]) -> str:
    all_names = sorted(names)
    near = difflib.get_close_matches(name, all_names, n=1) if len(all_names) <= FEW else []
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
    model = state.facts.models.get(command.spec.name)
    if model is not None and not model.removed and model.declared == command.spec:
        return None  # it was judged when it was defined
    wrong = problems(state, command.spec)
    if wrong:
        raise Refused(wrong)
    return ModelDefined(at=now, model=command.spec.name, spec=command.spec, fingerprint=fingerprint(command.spec))


def _remove(state: State, command: RemoveModel, now: datetime) -> Event | None:
    return ModelRemoved(at=now, model=model_named(state, command.model).name)


def _scale(state: State, command: ScaleModel, now: datetime) -> Event | None:
    model = model_named(state, command.model)
    wrong = list(scaling_problems(command.scaling, "scaling."))
    if wrong:
        raise Refused(wrong)
    if model.spec.scaling == command.scaling and model.stopped is None and model.scaled is None:
        return None
    return ModelScaled(at=now, model=model.name, scaling=command.scaling)


def _restart(state: State, command: RestartModel, now: datetime) -> Event | None:
    model = model_named(state, command.model)
    if model.parked is not None or model.retry_at is not None:
        return ModelUnparked(at=now, model=model.name)
    if not any(r.phase in ("placed", "ready") for r in state.replicas_of(model.name)):
        return None
    return ModelRestarted(at=now, model=model.name, in_place=command.in_place, reason=command.reason)


def _stop(state: State, command: StopModel, now: datetime) -> Event | None:
    model = model_named(state, command.model)
    if model.stopped == command.reason:
        return None
    return ModelStopped(at=now, model=model.name, reason=command.reason)


def _start(state: State, command: StartModel, now: datetime) -> Event | None:
    model = model_named(state, command.model)
    return ModelStarted(at=now, model=model.name) if model.stopped is not None else None


def _wake(state: State, command: WakeModel, now: datetime) -> Event | None:
    model = _of_adapter(state, command.model) or model_named(state, command.model)
    if model.stopped is not None:
        raise Refused.one("model", f"{model.name} is stopped by an administrator{_because(model.stopped)}: start it")
    if state.facts.stopped is not None:
        raise Refused.one("model", f"the system is stopped{_because(state.facts.stopped)}: start it")
    if not model.spec.scaling.on_demand:
        return None
    if model.awake and model.asked_at is not None and now - model.asked_at < ASKED_AGAIN:
        return None
    return ModelWoken(at=now, model=model.name)


def _of_adapter(state: State, name: str) -> Model | None:
    """The model whose fine-tuning is called so: it is asked for under its own name."""
    models = (model for model in state.facts.models.values() if not model.removed)
    return next((model for model in models if any(a.name == name for a in model.spec.loras)), None)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _promote(state: State, command: PromoteModel, now: datetime) -> Event | None:
    model = model_named(state, command.model)
    if model.trial is None:
        raise Refused.one("model", f"no definition of {model.name} is on trial: there is nothing to promote")
    reason = command.reason or "promoted by hand"
    return ModelPromoted(at=now, model=model.name, fingerprint=model.trial.fingerprint, reason=reason)


def _roll_back(state: State, command: RollBackModel, now: datetime) -> Event | None:
    model = model_named(state, command.model)
    if model.trial is None:
        raise Refused.one("model", f"no definition of {model.name} is on trial: there is nothing to roll back")
    reason = command.reason or "rolled back by hand"
    return ModelRolledBack(at=now, model=model.name, fingerprint=model.trial.fingerprint, reason=reason)


def _stop_system(state: State, command: StopSystem, now: datetime) -> Event | None:
    return SystemStopped(at=now, reason=command.reason) if state.facts.stopped != command.reason else None


def _start_system(state: State, command: StartSystem, now: datetime) -> Event | None:
    return SystemStarted(at=now) if state.facts.stopped is not None else None


def _cap_rack(state: State, command: CapRack, now: datetime) -> Event | None:
    racks = {machine.facts.labels.get("rack") or name for name, machine in state.facts.machines.items()}
    if command.rack not in racks and command.rack not in state.facts.rack_watts:
        raise Refused.one("rack", _known("rack", command.rack, racks))
    if command.watts is not None and command.watts < 0:
        raise Refused.one("watts", f"{command.watts} W: state 0 or more, or nothing for no limit")
    if state.facts.rack_watts.get(command.rack) == command.watts:
        return None
    drawn = Capacity(state).rack_watts(command.rack)
    return RackCapped(at=now, rack=command.rack, watts=command.watts, drawn_watts=drawn)


def _cordon(state: State, command: CordonNode, now: datetime) -> Event | None:
    machine = _machine_named(state, command.machine_id)
    if machine.mode == "cordoned" and machine.reason == command.reason:
        return None
    return NodeCordoned(at=now, machine_id=command.machine_id, reason=command.reason)


def _drain(state: State, command: DrainNode, now: datetime) -> Event | None:
    machine = _machine_named(state, command.machine_id)
    if machine.mode == "drained" and machine.reason == command.reason and machine.force == command.force:
        return None
    return NodeDrained(at=now, machine_id=command.machine_id, reason=command.reason, force=command.force)


def _uncordon(state: State, command: UncordonNode, now: datetime) -> Event | None:
    if _machine_named(state, command.machine_id).mode == "open":
        return None
    return NodeUncordoned(at=now, machine_id=command.machine_id)


def _lend(state: State, command: LendNode, now: datetime) -> Event | None:
    machine = _machine_named(state, command.machine_id)
    if machine.mode == "lent" and machine.reason == command.to:
        return None
    return NodeLent(at=now, machine_id=command.machine_id, to=command.to)


def _reclaim(state: State, command: ReclaimNode, now: datetime) -> Event | None:
    mode = _machine_named(state, command.machine_id).mode
    if mode != "lent":
        what = "it was lent to nobody" if mode == "open" else f"it is {mode}: `llmgw node uncordon` opens it again"
        raise Refused.one("machine_id", f"{command.machine_id} cannot be reclaimed, {what}")
    return NodeReclaimed(at=now, machine_id=command.machine_id)


def _retire(state: State, command: RetireNode, now: datetime) -> Event | None:
    machine = _machine_named(state, command.machine_id)
    if machine.lost_at is None:
        raise Refused.one(
            "machine_id", f"{command.machine_id} is heard: `llmgw node drain` it and stop its agent, then retire it"
        )
    if running := still_running(state, command.machine_id):
        raise Refused.one(
            "machine_id",
            f"{', '.join(running[:3])} may still answer, or has parts elsewhere that are being stopped: see that the "
            "model runs elsewhere, or stop or remove it, then retire the machine",
        )
    return NodeRetired(at=now, machine_id=command.machine_id, lost_at=machine.lost_at, reason=command.reason)


def _give_operation(state: State, command: GiveErrand, now: datetime) -> Event | None:
    return operations.give(state, _machine_named(state, command.machine_id), command, now)


_COMMANDS: dict[type[Command], Callable[[State, Any, datetime], Event | None]] = {
    DefineModel: _define,
    RemoveModel: _remove,
    ScaleModel: _scale,
    RestartModel: _restart,
    CordonNode: _cordon,
    DrainNode: _drain,
    UncordonNode: _uncordon,
    LendNode: _lend,
    ReclaimNode: _reclaim,
    RetireNode: _retire,
    GiveErrand: _give_operation,
    StopModel: _stop,
    StartModel: _start,
    WakeModel: _wake,
    PromoteModel: _promote,
    RollBackModel: _roll_back,
    StopSystem: _stop_system,
    StartSystem: _start_system,
    CapRack: _cap_rack,
}
