"""What a change would lead to, on the log as it is: told, and nothing else touched."""

from __future__ import annotations

import pytest

from libs.events.commands import DefineModel, DrainNode, RemoveModel, StopModel
from libs.events.refusal import Refused
from services.scheduler.replay import fold
from services.scheduler.whatif import WhatIf

from .harness import World, cpu_profile, gpu_profile, model_spec


@pytest.fixture
def world() -> World:
    world = World()
    for name in ("a", "b"):
        world.machine(name, gpus=2)
    world.define(model_spec("m", 3, gpu_profile()))
    world.settle()
    return world


def would(world: World, *commands: object, lost: tuple[str, ...] = ()) -> WhatIf:
    before = world.state.hash()
    found = fold(world.log).what_if(commands, lost, [], world.now)  # type: ignore[arg-type]
    assert world.state.hash() == before
    return found


def test_a_model_that_fits_starts_and_says_where(world: World) -> None:
    found = would(world, DefineModel(spec=model_spec("n", 1, gpu_profile())))
    assert [(move.model, move.what) for move in found.moves] == [("n", "start")]
    assert "with the profile gpu" in found.moves[0].sentence
    assert [(m.model, m.ready_before, m.ready_after, m.wanted) for m in found.models] == [("n", 0, 1, 1)]
    assert found.underway == ()
    assert found.position == world.log[-1][0]


def test_a_model_that_does_not_fit_says_why(world: World) -> None:
    found = would(world, DefineModel(spec=model_spec("n", 1, gpu_profile(gpus=2))))
    assert [move.what for move in found.moves] == ["tell"]
    assert "needs 2 GPUs of class h100-80g, " in found.moves[0].sentence
    [model] = found.models
    assert (model.model, model.state) == ("n", "unplaced")


def test_a_lost_machine_moves_what_it_ran(world: World) -> None:
    found = would(world, lost=("a",))
    assert {move.what for move in found.moves} == {"start", "stop", "tell"}
    assert all(move.machines == ("b",) for move in found.moves if move.what == "start")
    [model] = found.models
    assert (model.ready_before, model.ready_after, model.wanted) == (3, 2, 3)


def test_a_drained_machine_and_a_higher_class_are_played_through(world: World) -> None:
    urgent = DefineModel(spec=model_spec("urgent", 1, gpu_profile(gpus=2), priority_class="high"))
    found = would(world, urgent)
    assert [m.model for m in found.models if m.ready_after < m.ready_before] == ["m"]
    drained = would(world, DrainNode(machine_id="a"))
    assert any(move.what == "stop" and move.machines == ("a",) for move in drained.moves)


def test_stopping_and_removing(world: World) -> None:
    stopped = would(world, StopModel(model="m"))
    assert [move.what for move in stopped.moves] == ["stop"] * 3
    removed = would(world, RemoveModel(model="m"))
    assert [(m.model, m.ready_after, m.state) for m in removed.models] == [("m", 0, "removed")]


def test_what_was_not_finished_is_told_apart() -> None:
    world = World()
    world.machine("a")
    world.define(model_spec())
    world.react()
    found = would(world, DefineModel(spec=model_spec("n", 1, cpu_profile())))
    assert [m.model for m in found.models] == ["n"]
    assert {move.model for move in found.moves} == {"n"}


def test_a_change_that_would_be_refused_is(world: World) -> None:
    with pytest.raises(Refused, match="there is none"):
        would(world, _without_profiles())
    with pytest.raises(Refused, match="there is no node 'x'"):
        would(world, lost=("x",))


def _without_profiles() -> DefineModel:
    import msgspec

    return DefineModel(spec=msgspec.structs.replace(model_spec("n"), profiles=()))
