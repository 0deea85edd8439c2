"""Errands: what an operator asks of a machine's agent once. They stand in what the machine should do until it says
how each ended."""

from __future__ import annotations

from datetime import datetime

import msgspec

from libs.events.commands import GiveErrand, Problem
from libs.events.machine import MachineErrandEnded
from libs.events.node import Errand, NodeErrandGiven
from libs.events.refusal import Refused
from libs.events.sources import on_machines
from libs.events.views import ErrandWanted

from .facts import ERRANDS, Machine, Replica
from .state import State

MAX_OPEN = 16
"""Open ones of a machine: more than that are of no use to anybody, and all of them are sent to it whole."""

MAX_BYTES = 16 * 1024
"""Of one: it stands in what the machine should do until it has ended."""


def give(state: State, machine: Machine, command: GiveErrand, now: datetime) -> NodeErrandGiven | None:
    """None: the same errand is still open. Raises Refused."""
    machine_id, errand = command.machine_id, command.errand
    problems = [*_unable(machine), *_too_long(errand), *_problems(state, machine_id, errand)]
    if problems:
        raise Refused(problems)
    if any(errand == wanted.errand for wanted in machine.errands):
        return None
    return NodeErrandGiven(at=now, machine_id=machine_id, errand=errand, reason=command.reason)


def _unable(machine: Machine) -> list[Problem]:
    facts = machine.facts
    if ERRANDS not in facts.features:
        message = f"the agent of {facts.machine_id} ({facts.agent_version}) knows no errands: upgrade it"
        return [Problem(path="machine_id", message=message)]
    if len(machine.errands) >= MAX_OPEN:
        message = (
            f"{facts.machine_id} has {len(machine.errands)} errands that it did not end, the oldest is "
            f"#{machine.errands[0].number}: is its agent running?"
        )
        return [Problem(path="machine_id", message=message)]
    return []


def _too_long(errand: Errand) -> list[Problem]:
    size = len(msgspec.json.encode(errand))
    if size <= MAX_BYTES:
        return []
    return [Problem(path="errand", message=f"it has {size} bytes, {MAX_BYTES} at most")]


def _problems(state: State, machine_id: str, errand: Errand) -> list[Problem]:
    if errand.kind == "restart_shard":
        return _not_restarted(state, machine_id, errand.shard_id)
    if errand.kind == "change_settings" and not errand.settings:
        return [Problem(path="errand.settings", message="no setting is named: state SETTING=VALUE")]
    if errand.kind == "remove_weights" and on_machines(errand.weights):
        message = f"{errand.weights} was not put on the machine by the agent: whoever did removes it there"
        return [Problem(path="errand.weights", message=message)]
    if errand.kind == "remove_weights":
        name, _, version = errand.weights.partition("@")
        if not name or not version:
            message = f"{errand.weights!r} does not say which version: state NAME@VERSION"
            return [Problem(path="errand.weights", message=message)]
    return []


def _not_restarted(state: State, machine_id: str, shard_id: str) -> list[Problem]:
    there = sorted(state.held.get(machine_id, ()))
    if shard_id not in there:
        message = f"no shard {shard_id!r} runs on {machine_id}; there is {', '.join(there) or 'none'}"
        return [Problem(path="errand.shard_id", message=message)]
    replica = state.facts.replicas[shard_id.rpartition("-")[0]]
    if replica.phase not in ("placed", "ready"):
        message = f"{replica.replica_id} is {replica.phase}: it is on its way out"
        return [Problem(path="errand.shard_id", message=message)]
    if len(replica.shards) > 1:
        message = (
            f"{shard_id} computes together with {len(replica.shards) - 1} others, which end with it: restart the model "
            f"({replica.model}) instead"
        )
        return [Problem(path="errand.shard_id", message=message)]
    return []


def open_operations(machine: Machine) -> tuple[ErrandWanted, ...]:
    """Those its agent has not ended yet, the oldest first."""
    return tuple(machine.errands)


def restarts(state: State, machine_id: str, shard_id: str) -> bool:
    """Whether an engine that starts anew there does so because it was asked to."""
    machine = state.facts.machines.get(machine_id)
    return machine is not None and any(wanted.errand.shard_id == shard_id for wanted in machine.errands)


def begins_anew(machine: Machine) -> bool:
    """Whether its agent was asked to, and has not said that it did: it is silent meanwhile."""
    return any(wanted.errand.kind == "restart_agent" for wanted in machine.errands)


def given(state: State, event: NodeErrandGiven, position: int) -> None:
    """Fold that an operation was given."""
    machine = state.facts.machines.get(event.machine_id)
    if machine is None:
        return
    machine.errands.append(ErrandWanted(number=position, errand=event.errand))
    state.changed[event.machine_id] = position
    replica = state.facts.replicas.get(event.errand.shard_id.rpartition("-")[0])
    shard = replica.shards.get(event.errand.shard_id) if replica is not None else None
    if replica is not None and shard is not None and not shard.ended and replica.phase in ("placed", "ready"):
        # Nothing is sent to it from now on; its agent lets it finish what it has and says when it serves again.
        shard.phase, shard.since, shard.position = "wanted", event.at, position
        starts_anew(state, replica, event.at, position)


def starts_anew(state: State, replica: Replica, at: datetime, position: int) -> None:
    """It serves no more until its engine is ready again."""
    if replica.phase == "ready":
        replica.phase, replica.since, replica.position = "placed", at, position
        replica.reason = "its engine is restarted by hand"
        state.index(replica)
    state.facts.models[replica.model].touched = position


def ended(state: State, event: MachineErrandEnded, position: int) -> None:
    """Fold that an operation has ended, well or not."""
    machine = state.facts.machines.get(event.machine_id)
    if machine is None:
        return
    machine.errands = [
        wanted for wanted in machine.errands if (wanted.number, wanted.errand.kind) != (event.errand, event.kind)
    ]
    state.changed[event.machine_id] = position
