"""What an operator asks of one machine: given once, standing in what the machine should do until it has ended."""

from __future__ import annotations

from typing import Any

import pytest

from libs.events import state_hash
from libs.events.commands import GiveErrand
from libs.events.machine import MachineErrandEnded
from libs.events.model import ModelUnplaced
from libs.events.node import Errand, NodeErrandGiven
from libs.events.replica import ReplicaFailed, ReplicaReady
from libs.events.shard import ShardFailed, ShardStarting
from services.scheduler.core.state.facts import ERRANDS
from services.scheduler.core.state.operations import MAX_BYTES, MAX_OPEN, open_operations

from .harness import World, cpu_profile, gpu_profile, model_spec


def asked(machine_id: str = "a", **errand: Any) -> GiveErrand:
    return GiveErrand(machine_id=machine_id, errand=Errand(**errand))


@pytest.fixture
def world() -> World:
    world = World()
    world.machine("a", features=(ERRANDS,))
    world.define(model_spec("m"))
    return world.settle()


def shard_of(world: World) -> str:
    return next(iter(world.replicas()[0].shards))


def open_on(world: World, machine_id: str = "a") -> list[tuple[int, str]]:
    return [(one.number, one.errand.kind) for one in open_operations(world.state.facts.machines[machine_id])]


def ends(world: World, number: int, outcome: Any = "done", kind: Any = "restart_agent") -> None:
    world.append(MachineErrandEnded(at=world.now, machine_id="a", errand=number, kind=kind, outcome=outcome))


def test_an_errand_stands_until_the_machine_says_how_it_ended(world: World) -> None:
    given = world.command(asked(kind="restart_agent"))
    assert isinstance(given, NodeErrandGiven)
    number = world.state.position
    assert open_on(world) == [(number, "restart_agent")]
    assert world.command(asked(kind="restart_agent")) is None, "it is asked for already"
    world.command(asked(kind="remove_weights", weights="x@1"))
    assert open_on(world) == [(number, "restart_agent"), (number + 1, "remove_weights")]
    assert state_hash(world.state.facts), "a state that holds some has a hash like any other"
    ends(world, number)
    assert open_on(world) == [(number + 1, "remove_weights")]
    ends(world, number)
    assert world.command(asked(kind="restart_agent")) is not None


def test_for_what_only_views_show_nothing_that_lacks_room_is_looked_at_again(world: World) -> None:
    world.define(model_spec("big", 1, gpu_profile()))
    changed = world.state.capacity_changed
    world.settle()
    assert [event.model for event in world.events(ModelUnplaced)] == ["big"]
    world.command(asked(kind="restart_agent"))
    ends(world, world.state.position)
    assert world.state.capacity_changed == changed < world.state.position


def test_what_cannot_be_asked_is_refused_with_the_reason(world: World) -> None:
    world.machine("old")
    assert world.refused(asked("b", kind="restart_agent")) == {"machine_id": "there is no node 'b'; there is a, old"}
    assert "upgrade it" in world.refused(asked("old", kind="restart_agent"))["machine_id"]
    assert world.refused(asked(kind="restart_shard", shard_id="m-9-0")) == {
        "errand.shard_id": f"no shard 'm-9-0' runs on a; there is {shard_of(world)}"
    }
    assert "SETTING=VALUE" in world.refused(asked(kind="change_settings"))["errand.settings"]
    assert "NAME@VERSION" in world.refused(asked(kind="remove_weights", weights="gemma"))["errand.weights"]
    removed = world.refused(asked(kind="remove_weights", weights="file:/mnt/m"))["errand.weights"]
    assert removed == "file:/mnt/m was not put on the machine by the agent: whoever did removes it there"
    for n in range(MAX_OPEN):
        assert world.command(asked(kind="remove_weights", weights=f"x@{n}")) is not None
    assert "is its agent running" in world.refused(asked(kind="restart_agent"))["machine_id"]


def test_a_shard_of_several_is_not_restarted_alone() -> None:
    world = World()
    for name in ("a", "b"):
        world.machine(name, gpus=1, fabric="1", features=(ERRANDS,))
    world.define(model_spec("m", 1, gpu_profile(nodes=2)))
    world.settle()
    assert (
        "restart the model (m)"
        in world.refused(asked(kind="restart_shard", shard_id=shard_of(world)))["errand.shard_id"]
    )


def test_a_restarted_engine_gets_no_requests_until_it_serves_again(world: World) -> None:
    assert world.serving() == ["a"]
    shard = shard_of(world)
    world.command(asked(kind="restart_shard", shard_id=shard))
    number = world.state.position
    assert world.serving() == []
    world.react()
    assert world.serving() == [], "what its machine said before does not count"
    # Its agent was started anew as well, and finds the engine ready before it gets to the errand.
    machine = world.machines["a"]
    machine.restart_agent()
    world.react()
    wanted, _ = machine.shards[shard]
    machine.shards[shard] = (wanted, "starting")
    machine.say(ShardStarting(**machine._about(wanted), engine="sim"))
    world.react()
    assert world.serving() == []
    world.settle(3)
    ends(world, number, kind="restart_shard")
    assert world.serving() == ["a"]
    assert world.events(ReplicaFailed) == []
    assert shard_of(world) == shard
    assert len(world.events(ReplicaReady)) >= 2


def test_a_restart_that_fails_is_a_failed_replica_like_any_other(world: World) -> None:
    shard = shard_of(world)
    world.command(asked(kind="restart_shard", shard_id=shard))
    number = world.state.position
    machine = world.machines["a"]
    machine._end(shard, ShardFailed, phase="loading", reason="the engine died")
    ends(world, number, "failed", "restart_shard")
    world.settle()
    assert [f"{failed.replica_id}-0" for failed in world.events(ReplicaFailed)] == [shard]
    assert world.serving() == ["a"]
    assert shard_of(world) != shard


def test_a_restart_nobody_takes_up_is_given_up(world: World) -> None:
    world.machines["a"].stuck.add("m")
    world.command(asked(kind="restart_shard", shard_id=shard_of(world)))
    world.wait(130)
    assert "did not take it up" in world.events(ReplicaFailed)[0].reason


def test_a_wider_look_is_not_needed(world: World) -> None:
    """What is asked of one machine leaves the models of others alone."""
    world.machine("b", features=(ERRANDS,))
    world.define(model_spec("other", 1, cpu_profile()))
    world.settle()
    touched = {name: model.touched for name, model in world.state.facts.models.items()}
    world.command(asked(kind="restart_agent"))
    assert {name: model.touched for name, model in world.state.facts.models.items()} == touched


def test_a_state_with_an_open_errand_has_a_hash(world: World) -> None:
    before = world.state.hash()
    world.command(asked(kind="restart_agent"))
    assert world.state.hash() != before


def test_an_errand_that_would_fill_what_the_machine_reads_is_refused(world: World) -> None:
    refused = world.refused(asked(kind="change_settings", settings={"labels": "x" * MAX_BYTES}))
    assert f"{MAX_BYTES} at most" in refused["errand"]
    assert open_on(world) == []


def test_the_end_of_another_errand_of_its_number_ends_nothing(world: World) -> None:
    """A machine may tell late what it did for a log that was put back from a copy since."""
    world.command(asked(kind="restart_agent"))
    [(number, _)] = open_on(world)
    ends(world, number, kind="remove_weights")
    assert open_on(world) == [(number, "restart_agent")]
    ends(world, number)
    assert open_on(world) == []
