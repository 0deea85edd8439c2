"""What is gone for good leaves: lost machines, what ran on them, removed versions, mirrors."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from libs.events.commands import DefineModel, DrainNode, RetireNode, StopModel
from libs.events.library import MirrorRetired, VersionRemoved
from libs.events.node import NodeDrained, NodeJoined, NodeLost, NodeRetired
from services.scheduler.core.state.snapshot import Kept, keep, restore
from services.scheduler.core.state.state import State

from .harness import World, index_follows_facts, model_spec, no_double_holding

MONTH = timedelta(days=30)


@pytest.fixture
def world() -> World:
    world = World()
    world.checks = [index_follows_facts, no_double_holding]
    return world


def away(world: World, machine_id: str) -> None:
    """It dies, and what ran there runs elsewhere."""
    world.machines[machine_id].up = False
    world.wait(60)
    assert world.state.facts.machines[machine_id].lost


def days(world: World, count: int) -> None:
    for _ in range(count):
        world.now += timedelta(days=1)
        world.step()


def with_policy(world: World) -> None:
    world.retire_after = MONTH
    world.reconciler = world.leader()


def test_a_machine_lost_for_a_month_is_retired_with_what_ran_there(world: World) -> None:
    with_policy(world)
    world.machine("n1")
    world.machine("n2")
    world.define(model_spec())
    world.settle()
    [where] = world.serving()
    away(world, where)
    assert len(world.replicas()) == 2, "the lost one's room is held for as long as the machine is known"
    world.model().failed_on[where] = 3
    days(world, 29)
    assert where in world.state.facts.machines
    days(world, 2)
    [retired] = world.events(NodeRetired)
    assert (retired.machine_id, retired.reason) == (where, "lost for more than 30 days")
    assert where not in world.state.facts.machines
    assert where not in world.state.held
    assert where not in world.state.changed
    assert len(world.replicas()) == len(world.serving()) == 1
    assert world.model().failed_on == {}
    world.define(model_spec("other"))
    world.settle()
    assert world.serving("other") == world.serving()


def test_it_joins_anew_when_it_is_back(world: World) -> None:
    with_policy(world)
    world.machine("n1")
    world.machine("n2")
    world.settle()
    away(world, "n1")
    world.command(RetireNode(machine_id="n1", reason="sold"))
    fake = world.machines["n1"]
    fake.wipe()
    world.append(msgspec.structs.replace(fake.registered, at=world.now))
    world.settle()
    assert [e.machine_id for e in world.events(NodeJoined)] == ["n1", "n2", "n1"]
    world.define(model_spec(replicas=2))
    world.settle()
    assert world.serving() == ["n1", "n2"]


def test_only_what_is_lost_and_serves_nothing_is_retired_by_hand(world: World) -> None:
    world.machine("n1")
    world.define(model_spec())
    world.settle()
    assert "is heard" in world.refused(RetireNode(machine_id="n1"))["machine_id"]
    assert "there is no node 'n9'" in world.refused(RetireNode(machine_id="n9"))["machine_id"]
    away(world, "n1")
    assert "may still answer" in world.refused(RetireNode(machine_id="n1"))["machine_id"]
    world.machine("n2")
    world.settle()
    world.command(RetireNode(machine_id="n1"))
    assert world.serving() == ["n2"]


def test_a_lost_machine_is_retired_once_its_model_is_stopped(world: World) -> None:
    world.machine("n1")
    world.define(model_spec())
    world.settle()
    away(world, "n1")
    assert "or stop or remove it" in world.refused(RetireNode(machine_id="n1"))["machine_id"]
    world.command(StopModel(model="m"))
    world.command(RetireNode(machine_id="n1"))
    assert world.state.facts.machines == {}
    assert world.replicas() == []


def test_one_that_is_drained_or_lent_stays_until_somebody_retires_it(world: World) -> None:
    with_policy(world)
    world.machine("n1")
    world.settle()
    world.command(DrainNode(machine_id="n1", reason="being mended"))
    away(world, "n1")
    days(world, 40)
    assert [type(e) for _, e in world.log if isinstance(e, NodeDrained | NodeRetired)] == [NodeDrained]


def test_a_removed_version_leaves_when_nothing_runs_from_it(world: World) -> None:
    world.machine("n1", memory_mb=64_000, cores=32)
    world.mirror()
    world.weights("w", "v1")
    world.define(model_spec(source="library:w@v1"))
    world.settle()
    assert world.serving() == ["n1"]
    world.append(VersionRemoved(at=world.now, name="w", version="v1"))
    assert set(world.state.facts.versions) == {"w@v1"}
    world.command(DefineModel(spec=model_spec()))
    world.settle(20)
    assert world.state.facts.versions == {}
    world.append(MirrorRetired(at=world.now, mirror_id="mirror-1", said_at=world.now))
    assert world.state.facts.mirrors == {}


def test_years_of_machines_leave_no_more_than_those_there_are(world: World) -> None:
    """Every fortnight a machine dies and another comes in its place, for ten years."""
    with_policy(world)
    world.machine("keeper")
    world.define(model_spec(replicas=2))
    sizes = []
    for number in range(260):
        name = f"n{number:03}"
        world.machine(name)
        world.settle(8)
        days(world, 7)
        world.machines[name].up = False
        world.wait(15)
        days(world, 7)
        # Long gone: nothing is simulated of it any more.
        for old in [m for m in world.machines if m not in world.state.facts.machines]:
            del world.machines[old]
        facts = world.state.facts
        sizes.append((len(facts.machines), len(facts.replicas), len(world.state.held), len(world.state.changed)))
    assert max(sizes) == max(sizes[:26]), "what is kept after ten years is what was kept after one"
    assert max(max(size) for size in sizes) <= 8
    assert len(world.events(NodeLost)) == 260
    again: State = restore(msgspec.json.decode(msgspec.json.encode(keep(world.state)), type=Kept))
    assert again.hash() == world.state.hash()
