"""Replicas that start at once: so many and no more, and nothing else about where they go changes."""

from __future__ import annotations

from collections import Counter

import pytest

from libs.events.model import ModelUnplaced
from libs.events.replica import ReplicaPlaced
from services.scheduler.core.views.model_views import model_view

from .harness import World, cpu_profile, gpu_profile, model_spec


@pytest.fixture
def world() -> World:
    return World()


def test_so_many_start_at_once_and_the_rest_when_those_are_done(world: World) -> None:
    world.starts_at_once = 3
    world.reconciler = world.leader()
    for i in range(10):
        world.machine(f"n{i}")
    for i in range(10):
        world.define(model_spec(f"m{i}"))
    world.react()
    assert len(world.events(ReplicaPlaced)) == 3
    waiting = model_view(world.state, world.model("m9"))
    assert (waiting.state, waiting.reason) == (
        "waiting",
        "it waits for its turn: other replicas are starting or leaving",
    )
    world.settle(20)
    assert len(world.events(ReplicaPlaced)) == 10
    assert all(len(world.serving(f"m{i}")) == 1 for i in range(10))
    assert not world.events(ModelUnplaced)


def test_the_higher_class_starts_first(world: World) -> None:
    world.starts_at_once = 1
    world.reconciler = world.leader()
    world.machine()
    world.define(model_spec("first"))
    world.react()
    world.define(model_spec("low", priority_class="low"))
    world.define(model_spec("high", priority_class="high"))
    world.settle(20)
    assert [e.model for e in world.events(ReplicaPlaced)] == ["first", "high", "low"]


def test_a_start_that_takes_long_is_in_nobodys_way(world: World) -> None:
    world.starts_at_once = 1
    world.reconciler = world.leader()
    world.machine().stuck = {"slow"}
    world.define(model_spec("slow", 1, cpu_profile(startup_timeout_s=3600)))
    world.react()
    world.define(model_spec("m"))
    world.wait(290, step=5)
    assert world.serving() == []
    world.wait(30)
    assert world.serving() == ["cpu-1"]


def test_one_machine_starts_a_few_at_once(world: World) -> None:
    world.machine(memory_mb=100_000, cores=64)
    world.define(model_spec("m", 10, cpu_profile(memory_mb=100)))
    world.react()
    assert len(world.events(ReplicaPlaced)) == 4
    world.settle(30)
    assert len(world.serving()) == 10
    assert not world.events(ModelUnplaced)


def test_a_machine_with_more_gpus_starts_as_many_as_it_has_and_none_is_broken_up_for_it(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, gpus=8)
    for i in range(8):
        world.define(model_spec(f"m{i}", 1, gpu_profile()))
    world.react()
    assert Counter(shard.machine_id for e in world.events(ReplicaPlaced) for shard in e.shards) == {"a": 8}


def test_what_waits_for_its_turn_takes_room_from_nobody(world: World) -> None:
    world.starts_at_once = 1
    world.reconciler = world.leader()
    world.machine(cores=2)
    world.define(model_spec("low", 1, priority_class="low"))
    world.settle()
    world.machines["cpu-1"].stuck = {"normal"}
    world.define(model_spec("normal", 1))
    world.react()
    world.define(model_spec("high", 1, priority_class="high"))
    world.wait(30)
    assert world.serving("low") == ["cpu-1"]
