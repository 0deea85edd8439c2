"""Folding the log: each event changes the state in one place, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from libs.events import Event, plane
from libs.events.leadership import SchedulerElected
from libs.events.library import (
    MirrorRetired,
    MirrorServing,
    VersionAdded,
    VersionRemoved,
)
from libs.events.machine import MachineErrandEnded, MachineRegistered
from libs.events.model import ModelEvent, ModelUnplaced
from libs.events.node import (
    NodeCordoned,
    NodeDrained,
    NodeErrandGiven,
    NodeJoined,
    NodeLent,
    NodeLost,
    NodeReclaimed,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
)
from libs.events.replica import ReplicaEvent
from libs.events.shard import ShardEvent
from libs.events.subjects import elected
from libs.events.system import (
    PlacingPaused,
    PlacingResumed,
    RackCapped,
    SystemStarted,
    SystemStopped,
)

from . import operations
from .facts import Machine, Pause
from .models import FOLDS as MODELS
from .replicas import FOLDS as REPLICAS
from .replicas import forget, of_retired
from .state import State

AGGREGATES = ("machine", "node", "shard", "replica", "model", "library", "mirror", "system")
SUBJECTS = (*(plane("evt", aggregate) for aggregate in AGGREGATES), elected("scheduler"))
"""What the state is folded from."""
OWNS = ("model", "node", "replica", "scheduler", "system")
"""Aggregates only a scheduler writes: one among them that cannot be read comes from a newer scheduler."""

NOTES = (ModelUnplaced,)
"""Events of models and replicas that only views show: models that lack room need not be looked at again for them."""


def evolve(state: State, event: Event, position: int) -> State:
    """The state after ``event``, which stands at ``position`` in EVENTS. Changes and returns ``state``.

    Events that say nothing to the scheduler only move the position.
    """
    state.position = position
    fold = _FOLDS.get(type(event))
    if fold is not None:
        fold(state, event, position)
        if isinstance(event, ModelEvent | ReplicaEvent) and not isinstance(event, NOTES):
            # Whose room may be taken, and whose is coming back, depends on what models and replicas are.
            state.capacity_changed = position
        if isinstance(event, ModelEvent | ReplicaEvent | ShardEvent):
            history = state.histories.get(event.model)
            if history is not None:
                history.events.append((position, event))
    return state


# machines and nodes


def _registered(state: State, event: MachineRegistered, position: int) -> None:
    machine = state.facts.machines.get(event.machine_id)
    if machine is None:
        state.facts.machines[event.machine_id] = Machine(
            facts=event, registered=position, position=position, here_since=event.at
        )
    else:
        before = machine.facts
        machine.facts, machine.registered = event, position
        if before.gpus != event.gpus:
            # A card that fell ill is left, one that healed may be used.
            _touch_machine(state, event.machine_id, position)
    state.changed[event.machine_id] = position
    state.capacity_changed = state.hardware_changed = state.nodes_changed = position


def _touch_machine(state: State, machine_id: str, position: int) -> None:
    """Models with something on a machine are looked at again."""
    state.changed[machine_id] = position
    for shard_id in state.held.get(machine_id, ()):
        replica = state.facts.replicas.get(shard_id.rpartition("-")[0])
        if replica is not None:
            state.facts.models[replica.model].touched = position


def _node(change: Callable[[Machine, Any], None]) -> Callable[[State, Any, int], None]:
    """For a change of whether, or for whom, a machine has room. What only views show of a machine has a fold of its
    own, as ``operations.given``."""

    def fold(state: State, event: Any, position: int) -> None:
        machine = state.facts.machines.get(event.machine_id)
        if machine is None:
            return
        change(machine, event)
        machine.position = position
        state.capacity_changed = state.nodes_changed = position
        _touch_machine(state, event.machine_id, position)

    return fold


def _joined(machine: Machine, event: NodeJoined) -> None:
    machine.joined = True


def _lost(machine: Machine, event: NodeLost) -> None:
    machine.lost_at = event.at


def _returned(machine: Machine, event: NodeReturned) -> None:
    machine.lost_at, machine.here_since = None, event.at


def _cordoned(machine: Machine, event: NodeCordoned) -> None:
    machine.mode, machine.reason, machine.force = "cordoned", event.reason, False


def _drained(machine: Machine, event: NodeDrained) -> None:
    machine.mode, machine.reason, machine.force = "drained", event.reason, event.force


def _uncordoned(machine: Machine, event: NodeUncordoned | NodeReclaimed) -> None:
    machine.mode, machine.reason, machine.force = "open", "", False


def _lent(machine: Machine, event: NodeLent) -> None:
    machine.mode, machine.reason, machine.force = "lent", event.to, False


def _retired(state: State, event: NodeRetired, position: int) -> None:
    if state.facts.machines.pop(event.machine_id, None) is None:
        return
    for replica in of_retired(state, event.machine_id):
        forget(state, replica, position)
    state.held.pop(event.machine_id, None)
    state.changed.drop(event.machine_id)
    for model in state.facts.models.values():
        model.failed_on.pop(event.machine_id, None)
    state.capacity_changed = state.hardware_changed = state.nodes_changed = position


def _elected(state: State, event: SchedulerElected, position: int) -> None:
    state.election, state.term = position, event.term


# the system


def _touch_all(state: State, position: int) -> None:
    state.capacity_changed = position
    for model in state.facts.models.values():
        model.touched = position


def _stopped(state: State, event: SystemStopped, position: int) -> None:
    state.facts.stopped = event.reason
    _touch_all(state, position)


def _started(state: State, event: SystemStarted, position: int) -> None:
    state.facts.stopped = None
    _touch_all(state, position)


def _paused(state: State, event: PlacingPaused, position: int) -> None:
    state.facts.paused = Pause(at=event.at, position=position, silent=event.silent, of=event.of)
    state.nodes_changed = position
    _touch_all(state, position)


def _resumed(state: State, event: PlacingResumed, position: int) -> None:
    state.facts.paused = None
    state.nodes_changed = position
    _touch_all(state, position)


def _rack(state: State, event: RackCapped, position: int) -> None:
    if event.watts is None:
        state.facts.rack_watts.pop(event.rack, None)
    else:
        state.facts.rack_watts[event.rack] = event.watts
    state.capacity_changed = position


# the library


def _touch_source(state: State, name: str, position: int) -> None:
    state.capacity_changed = position
    for model in state.facts.models.values():
        sources = [model.spec.source, *(lora.source for lora in model.spec.loras)]
        if any(source and source.removeprefix("library:").partition("@")[0] == name for source in sources):
            model.touched = position


def _version_added(state: State, event: VersionAdded, position: int) -> None:
    known = state.facts.library.setdefault(event.name, [])
    if event.version.version in known:
        known.remove(event.version.version)
    known.append(event.version.version)
    state.facts.versions[f"{event.name}@{event.version.version}"] = event.version
    _touch_source(state, event.name, position)


def _version_removed(state: State, event: VersionRemoved, position: int) -> None:
    known = state.facts.library.get(event.name, [])
    if event.version in known:
        known.remove(event.version)
    if not known:
        state.facts.library.pop(event.name, None)
    state.forget_version(f"{event.name}@{event.version}")
    _touch_source(state, event.name, position)


def _mirror(state: State, event: MirrorServing, position: int) -> None:
    if state.facts.mirrors.get(event.mirror_id) == event.url:
        return
    state.facts.mirrors[event.mirror_id] = event.url
    state.capacity_changed = state.mirrors_changed = position


def _mirror_retired(state: State, event: MirrorRetired, position: int) -> None:
    state.facts.mirrors.pop(event.mirror_id, None)
    state.capacity_changed = state.mirrors_changed = position


_FOLDS: dict[type[Event], Callable[[State, Any, int], None]] = {
    SchedulerElected: _elected,
    MachineRegistered: _registered,
    NodeJoined: _node(_joined),
    NodeLost: _node(_lost),
    NodeReturned: _node(_returned),
    NodeCordoned: _node(_cordoned),
    NodeDrained: _node(_drained),
    NodeUncordoned: _node(_uncordoned),
    NodeLent: _node(_lent),
    NodeReclaimed: _node(_uncordoned),
    NodeRetired: _retired,
    NodeErrandGiven: operations.given,
    MachineErrandEnded: operations.ended,
    SystemStopped: _stopped,
    SystemStarted: _started,
    RackCapped: _rack,
    PlacingPaused: _paused,
    PlacingResumed: _resumed,
    VersionAdded: _version_added,
    VersionRemoved: _version_removed,
    MirrorServing: _mirror,
    MirrorRetired: _mirror_retired,
    **MODELS,
    **REPLICAS,
}
