"""What is shown of nodes and of the racks they stand in."""

from __future__ import annotations

from collections.abc import Iterator

from libs.events.questions import RackPower
from libs.events.times import rfc3339
from libs.events.views import NodeView
from services.scheduler.core.placement.capacity import Capacity
from services.scheduler.core.placement.power import watts_of
from services.scheduler.core.placement.summary import card
from services.scheduler.core.state.facts import Machine, Replica
from services.scheduler.core.state.operations import open_operations
from services.scheduler.core.state.state import State


def node_view(state: State, machine: Machine) -> NodeView:
    """A machine, as people are shown it."""
    facts = machine.facts
    free = Capacity(state).free(machine)
    held = {device for shard in state.held.get(facts.machine_id, {}).values() for device in shard.devices}
    return NodeView(
        machine_id=facts.machine_id,
        state=node_state(state, machine),
        reason=_reason(state, machine),
        address=facts.address,
        cpu_count=facts.cpu_count,
        memory_total_mb=facts.memory_total_mb,
        gpus=tuple(gpu.gpu_class for gpu in facts.gpus),
        gpus_free=tuple(gpu.index for gpu in free.gpus),
        gpu_watts=sum(watts_of(gpu) for gpu in facts.gpus if gpu.uuid in held),
        labels=facts.labels,
        cores_free=free.cores,
        memory_free_mb=free.memory_mb,
        shards=tuple(sorted(_there(state, machine))),
        weights=facts.weights,
        errands=open_operations(machine),
        changed_settings=facts.changed_settings,
        problems=(*facts.problems, *_of_cards(machine)),
    )


def _of_cards(machine: Machine) -> Iterator[str]:
    for gpu in machine.facts.gpus:
        for problem in gpu.problems:
            yield f"{card(gpu)}: {problem}"


def _there(state: State, machine: Machine) -> set[str]:
    return {*state.held.get(machine.facts.machine_id, ()), *machine.orphans}


def node_state(state: State, machine: Machine) -> str:
    """``lost``, ``joining``, ``draining``, ``ready``, or the mode it was put into."""
    if machine.lost:
        return "lost"
    if not machine.joined:
        return "joining"
    if machine.mode == "drained" and _there(state, machine):
        return "draining"
    return "ready" if machine.mode == "open" else machine.mode


def _reason(state: State, machine: Machine) -> str:
    reasons = [machine.reason] if machine.reason else []
    if machine.lost_at is not None:
        reasons.insert(0, f"nothing is heard of it since {rfc3339(machine.lost_at)}")
    if machine.mode in ("drained", "lent"):
        reasons += _left(state, machine)
    return "; ".join(reasons)


def _left(state: State, machine: Machine) -> Iterator[str]:
    """What is still on a node that is to be empty."""
    there = _there(state, machine)
    stuck = {shard_id: r.model for shard_id in there if (r := _of(state, shard_id)) is not None and _stuck(state, r)}
    moving = len(there) - len(stuck)
    if stuck:
        models = ", ".join(sorted(set(stuck.values())))
        yield f"{_shards(len(stuck))} nowhere to go: `llmgw explain` of {models} says why"
    if moving:
        yield f"{_shards(moving)} yet to stop"


def _of(state: State, shard_id: str) -> Replica | None:
    return state.facts.replicas.get(shard_id.rpartition("-")[0])


def _stuck(state: State, replica: Replica) -> bool:
    return replica.phase in ("placed", "ready") and state.facts.models[replica.model].unplaced is not None


def _shards(count: int) -> str:
    return "1 shard has" if count == 1 else f"{count} shards have"


def racks(state: State) -> tuple[RackPower, ...]:
    """Those whose power is limited."""
    capacity = Capacity(state)
    return tuple(
        RackPower(rack=rack, watts=watts, drawn_watts=capacity.rack_watts(rack))
        for rack, watts in sorted(state.facts.rack_watts.items())
    )
