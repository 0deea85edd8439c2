"""A copy of the state, to suppose something on: what is folded into it leaves the state it was made of alone."""

from __future__ import annotations

from copy import deepcopy

import pytest

from services.scheduler.core.reconciler.reconcile import Reconciler
from services.scheduler.core.state.evolve import evolve
from services.scheduler.core.state.state import State
from tests.simulate.story import Story

from .harness import World, gpu_profile, model_spec


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_goes_its_own_way(seed: int) -> None:
    story = Story(seed)
    story.run()
    log = story.world.log
    state = State()
    for position, event in log[: len(log) // 2]:
        state = evolve(state, event, position)
    before, copy = state.hash(), deepcopy(state)
    assert copy.hash() == before
    for position, event in log[len(log) // 2 :]:
        copy = evolve(copy, event, position)
    assert state.hash() == before
    assert copy.hash() == story.world.state.hash()
    assert (copy.held, copy.position) == (story.world.state.held, story.world.state.position)


def test_a_copy_is_decided_on_alike_and_shares_what_never_changes() -> None:
    world = World()
    for name in ("a", "b"):
        world.machine(name, gpus=4)
    world.define(model_spec("m", 3, gpu_profile()))
    world.settle()
    world.define(model_spec("n", 9, gpu_profile()))
    copy = deepcopy(world.state)
    assert copy.facts.machines["a"].facts is world.state.facts.machines["a"].facts
    assert copy.facts.models["m"].spec is world.state.facts.models["m"].spec
    for name, replica in copy.facts.replicas.items():
        assert copy.of_model[replica.model][name] is replica
        assert world.state.facts.replicas[name] is not replica
    now, heartbeats = world.now, world.heartbeats()
    there = Reconciler().react(world.state, heartbeats, now, world.traffic())
    assert Reconciler().react(copy, heartbeats, now, world.traffic()) == there
    assert there
