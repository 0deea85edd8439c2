"""What holds after every event, whatever happened. Judged on what machines are and do, not on what the core thinks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from libs.events.model import ModelAutoscaled, ModelEvent, ModelParked, ModelSlept, ModelUnplaced
from libs.events.replica import ReplicaFailed, ReplicaLost, ReplicaPlaced, ReplicaReady, ReplicaRecovered
from services.scheduler.core.inputs.traffic import ReplicaUse
from tests.unit.scheduler.harness import (
    World,
    index_follows_facts,
    no_double_holding,
    really_free,
    silence_removes_nothing,
)

__all__ = ["ALWAYS", "silence_removes_nothing"]


def placed_where_it_may(world: World) -> None:
    """A replica goes to machines that are there and take work, over one fabric, each machine once."""
    event = world.log[-1][1]
    if not isinstance(event, ReplicaPlaced):
        return
    used: list[set[str]] = []
    for shard in event.shards:
        machine = world.state.facts.machines[shard.machine_id]
        assert not machine.lost, f"{event.replica_id} is placed on {shard.machine_id}, which is lost"
        assert machine.mode == "open", f"{event.replica_id} is placed on {shard.machine_id}, which is {machine.mode}"
        assert not machine.orphans, f"{event.replica_id} is placed beside what nobody asked for on {shard.machine_id}"
        sick = [gpu.uuid for gpu in machine.facts.gpus if gpu.problems and gpu.uuid in shard.devices]
        assert not sick, f"{event.replica_id} is given {sick}, which is ill"
        used.append({port.network for port in machine.facts.ports if port.network is not None})
    assert len({shard.machine_id for shard in event.shards}) == len(event.shards), "two shards on one machine"
    if len(event.shards) > 1:
        assert set.intersection(*used), f"{event.replica_id} spans machines that share no fabric"


def apart_where_it_must(world: World) -> None:
    """A replica is placed beside nobody that it keeps away from, or that keeps away from it."""
    event = world.log[-1][1]
    if not isinstance(event, ReplicaPlaced):
        return
    facts = world.state.facts
    racks = {machine_id: machine.facts.labels["rack"] for machine_id, machine in facts.machines.items()}
    own = world.model(event.model)
    mine = own.trial.spec if own.trial is not None and own.trial.fingerprint == event.fingerprint else own.spec
    here = {shard.machine_id for shard in event.shards}
    for replica in facts.replicas.values():
        if replica.replica_id == event.replica_id:
            continue
        there = {shard.placement.machine_id for shard in replica.shards.values() if not shard.ended}
        there = {machine_id for machine_id in there if not facts.machines[machine_id].lost}
        other = facts.models[replica.model].spec
        rules = [r.within for r in mine.anti_affinity if replica.model in (r.models or (event.model,))]
        if replica.model != event.model:
            rules += [r.within for r in other.anti_affinity if event.model in r.models]
        for within in rules:
            near = here & there if within == "node" else {racks[m] for m in here} & {racks[m] for m in there}
            assert not near, f"{event.replica_id} and {replica.replica_id} must keep apart and are both in {near}"


def once_each(world: World) -> None:
    """No replica is placed twice, and none gets the name of another."""
    position, event = world.log[-1]
    if isinstance(event, ReplicaPlaced):
        assert event.replica_id not in world.placed, f"{event.replica_id} is placed twice"
        world.placed[event.replica_id] = position


def failures_wait(world: World) -> None:
    """One failure after another makes the next try wait, and five end the tries."""
    position, event = world.log[-1]
    if isinstance(event, ReplicaFailed):
        # Several that fail side by side are one failure; which of them counts is not judged here.
        count, last, since = world.failures.get(event.model, (0, event.at, 0))
        after = world.placed[event.replica_id] > since
        world.failures[event.model] = count + after, event.at if after else last, position
    elif isinstance(event, ReplicaPlaced):
        count, last, _ = world.failures.get(event.model, (0, None, 0))
        if count > 1 and last is not None:
            waits = timedelta(seconds=min(10 * 2 ** (count - 2), 300))
            assert event.at - last >= waits, f"{event.model} failed {count} times and is placed after {event.at - last}"
            assert count < 5, f"{event.model} failed {count} times in a row and is tried again"
    elif isinstance(event, ReplicaReady | ReplicaRecovered):
        since = max(world.placed[event.replica_id] - 1, world.forgiven.get(event.model, 0))
        world.failures[event.model] = 0, event.at, since
    elif isinstance(event, ModelEvent) and not isinstance(event, ModelUnplaced | ModelParked | ModelAutoscaled):
        world.failures[event.model] = 0, event.at, position
        world.forgiven[event.model] = position


def nothing_busy_is_evicted(world: World) -> None:
    event = world.log[-1][1]
    if isinstance(event, ModelSlept) and event.for_model:
        for replica in world.replicas(event.model):
            use = world.uses.get(replica.replica_id)
            assert use is None or not use.in_flight, f"{event.model} is put to sleep with requests in flight"
        assert not world.waiting.get(event.model), f"{event.model} is put to sleep while requests wait"
        scaling = world.model(event.model).spec.scaling
        assert event.idle_ms is not None
        assert event.idle_ms >= 1000 * scaling.evict_after_idle_s, f"{event.model} was idle for {event.idle_ms} ms only"


def scaled_within_limits(world: World) -> None:
    event = world.log[-1][1]
    if isinstance(event, ModelAutoscaled):
        scaling = world.model(event.model).spec.scaling
        most = scaling.max if scaling.max is not None else scaling.min
        assert max(1, scaling.min) <= event.replicas <= most, f"{event.model} is scaled to {event.replicas}"


def silent_together_are_waited_for(world: World) -> None:
    """Of machines that fell silent together a moment ago nothing is placed anew, nor where gateways are answered."""
    event = world.log[-1][1]
    if not isinstance(event, ReplicaLost):
        return
    use = world.uses.get(event.replica_id, ReplicaUse())
    assert use.unanswered or use.answered_ms is None, f"{event.replica_id} is lost, and its engine answers"
    there = [r for r in world.state.facts.replicas.values() if event.machine_id in r.machines]
    if any(world.uses.get(r.replica_id, use).unanswered >= 3 for r in there):
        return
    facts = world.state.facts.machines
    minute = timedelta(minutes=1)
    gone = {m for m, machine in facts.items() if machine.lost_at and world.now - machine.lost_at >= minute}
    silent = [
        (world.now - max(machine.last_heard, world.listening_since)).total_seconds()
        for machine_id, machine in world.machines.items()
        if machine_id not in gone  # whoever leads anew has not listened to them for longer
    ]
    here = sum(for_s <= 20 for for_s in silent)
    fell = sum(5 <= for_s <= 20 for for_s in silent)
    lost = world.machines[event.machine_id]
    if world.now - max(lost.last_heard, world.listening_since) > timedelta(seconds=20):
        return
    assert fell < 3 or fell < 0.2 * here, f"{event.replica_id} is lost with {fell} of {here} that fell silent together"


def starts_are_limited(world: World) -> None:
    event = world.log[-1][1]
    if not isinstance(event, ReplicaPlaced):
        return
    replicas = world.state.facts.replicas.values()
    starting = [r for r in replicas if r.phase == "placed" and world.now - r.since < timedelta(minutes=5)]
    most = world.starts_at_once or 32
    assert len(starting) <= most, f"{len(starting)} replicas are starting, {most} may"
    for machine_id, machine in world.machines.items():
        here = sum(machine_id in r.machines for r in starting)
        most = max(4, len(machine.registered.gpus))
        assert here <= most, f"{here} replicas are starting on {machine_id}, {most} may"


ALWAYS: list[Callable[[World], None]] = [
    no_double_holding,
    index_follows_facts,
    really_free,
    placed_where_it_may,
    apart_where_it_must,
    once_each,
    failures_wait,
    nothing_busy_is_evicted,
    scaled_within_limits,
    silent_together_are_waited_for,
    starts_are_limited,
]
