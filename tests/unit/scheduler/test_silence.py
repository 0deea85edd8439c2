"""Machines that are not heard: one is left at once, many together are waited for, and no route loses what may serve."""

from __future__ import annotations

from datetime import timedelta

import pytest

from libs.events.commands import DefineModel, DrainNode, GiveErrand, RemoveModel, StopModel
from libs.events.machine import MachineErrandEnded
from libs.events.node import Errand, NodeLost
from libs.events.replica import ReplicaDraining, ReplicaLost, ReplicaPlaced, ReplicaRecovered, ReplicaStopped
from libs.events.system import PlacingPaused, PlacingResumed
from services.scheduler.core.reconciler import silence
from services.scheduler.core.views.desired import wanted_on
from services.scheduler.core.views.routes import route

from .harness import World, gpu_profile, index_follows_facts, model_spec, silence_removes_nothing


@pytest.fixture
def world() -> World:
    world = World()
    world.checks = [index_follows_facts]
    return world


def fleet(world: World, count: int, models: int = 0) -> None:
    for i in range(count):
        world.machine(f"n{i:02}", features=("errands",))
    for i in range(models):
        world.define(model_spec(f"m{i:02}"))
    world.settle(30)


def hear(world: World, *machine_ids: str, nothing: bool) -> None:
    for machine_id in machine_ids or world.machines:
        world.machines[machine_id].connected = not nothing


def endpoints(world: World, model: str = "m") -> dict[str, bool]:
    """Machine to whether it is marked as silent."""
    return {e.machine_id: e.silent for e in route(world.state, world.model(model)).endpoints if not e.draining}


# routes


def test_an_engine_whose_agent_is_silent_is_asked_until_another_serves_in_its_place(world: World) -> None:
    fleet(world, 2)
    world.define(model_spec())
    world.settle()
    [where] = endpoints(world)
    other = ({"n00", "n01"} - {where}).pop()
    world.machines[other].stuck = {"m"}
    hear(world, where, nothing=True)
    world.wait(15)
    assert len(world.events(ReplicaLost)) == 1
    assert [r.machines[0] for r in world.replicas("m", "placed")] == [other]
    assert endpoints(world) == {where: True}
    world.machines[other].stuck = set()
    world.settle()
    assert endpoints(world) == {other: False}


def test_all_silent_and_nowhere_to_go_takes_nothing_away(world: World) -> None:
    fleet(world, 2)
    world.define(model_spec("m", 2))
    world.settle()
    hear(world, nothing=True)
    world.wait(300)
    assert endpoints(world) == {"n00": True, "n01": True}
    hear(world, nothing=False)
    world.settle()
    assert endpoints(world) == {"n00": False, "n01": False}
    assert len(world.events(ReplicaPlaced)) == 2
    assert not world.events(ReplicaStopped)


def test_a_model_nobody_wants_any_more_leaves_the_routes_though_nothing_is_heard(world: World) -> None:
    fleet(world, 1)
    world.define(model_spec())
    world.settle()
    hear(world, nothing=True)
    world.wait(10)
    assert endpoints(world) == {"n00": True}
    world.command(StopModel(model="m"))
    world.react()
    assert endpoints(world) == {}


def test_a_start_that_nobody_heard_the_end_of_is_in_no_route(world: World) -> None:
    fleet(world, 1)
    world.machines["n00"].stuck = {"m"}
    world.define(model_spec())
    world.settle()
    hear(world, nothing=True)
    world.wait(10)
    assert endpoints(world) == {}


def test_requests_in_flight_on_a_machine_that_comes_back_too_late_are_finished(world: World) -> None:
    fleet(world, 2)
    world.define(model_spec())
    world.settle()
    [where] = endpoints(world)
    hear(world, where, nothing=True)
    world.wait(30)
    world.machines[where].busy = set(world.machines[where].shards)
    hear(world, where, nothing=False)
    world.wait(60)
    assert [r.phase for r in world.replicas() if r.machines == (where,)] == ["draining"]
    assert world.machines[where].shards
    world.machines[where].busy = set()
    world.settle()
    assert not world.machines[where].shards


# gateways hear engines, whatever becomes of agents


def test_an_engine_that_answers_is_not_replaced(world: World) -> None:
    fleet(world, 2)
    world.define(model_spec())
    world.settle()
    [where] = endpoints(world)
    world.use("m", 1, answered_ms=200)
    hear(world, where, nothing=True)
    world.wait(60)
    assert world.events(NodeLost)
    assert endpoints(world) == {where: True}
    assert not world.events(ReplicaLost)
    world.deaf = True
    world.wait(10)
    assert not world.events(ReplicaLost), "a leader that hears nobody concludes nothing"
    world.deaf = False
    world.use("m", 0, answered_ms=6_000)
    world.wait(5)
    assert len(world.events(ReplicaLost)) == 1
    assert len(world.events(ReplicaPlaced)) == 2


def test_a_machine_that_comes_back_without_an_engine_it_was_not_lost_with_starts_it_anew(world: World) -> None:
    fleet(world, 4, models=4)
    hear(world, nothing=True)
    world.wait(10)
    for machine in world.machines.values():
        machine.wipe()
    hear(world, nothing=False)
    world.settle(30)
    assert not world.events(ReplicaLost)
    assert all(not silent for i in range(4) for silent in endpoints(world, f"m{i:02}").values())
    assert sum(len(machine.shards) for machine in world.machines.values()) == 4


# many together


def test_many_silent_together_are_waited_for(world: World) -> None:
    fleet(world, 10, models=10)
    placed = len(world.events(ReplicaPlaced))
    hear(world, nothing=True)
    world.wait(20)
    [paused] = world.events(PlacingPaused)
    assert (paused.silent, paused.of) == (10, 10)
    assert (paused.least, paused.share, paused.quiet_ms, paused.within_ms, paused.lasts_ms) == (
        *(3, 0.2, 5_000),
        *(60_000, 120_000),
    )
    assert not world.events(NodeLost)
    silence_removes_nothing(world)
    hear(world, nothing=False)
    world.wait(50)
    assert not world.events(PlacingResumed), "it may not have had its trouble yet"
    world.wait(20)
    [resumed] = world.events(PlacingResumed)
    assert resumed.reason == "0 of 10 machines were silent within the last 60 s"
    assert len(world.events(ReplicaPlaced)) == placed
    assert not world.events(NodeLost)
    assert all(not silent for i in range(10) for silent in endpoints(world, f"m{i:02}").values())


def test_a_site_that_is_heard_and_not_heard_by_turns_is_one_trouble(world: World) -> None:
    fleet(world, 10, models=10)
    placed = len(world.events(ReplicaPlaced))
    for turn in range(40):
        hear(world, *[f"n{i:02}" for i in range(10) if (i + turn) % 2], nothing=True)
        world.wait(10)
        hear(world, nothing=False)
        world.wait(3)
    assert len(world.events(PlacingPaused)) == 1
    assert not world.events(PlacingResumed)
    assert not world.events(NodeLost)
    assert len(world.events(ReplicaPlaced)) == placed


def test_two_of_ten_are_taken_for_lost_one_by_one_and_three_are_not(world: World) -> None:
    fleet(world, 10, models=10)
    hear(world, "n00", "n01", nothing=True)
    world.wait(10)
    assert not world.events(PlacingPaused)
    gone = len(world.events(ReplicaLost))
    assert gone
    hear(world, "n02", nothing=True)
    world.wait(30)
    assert (world.events(PlacingPaused)[0].silent, len(world.events(ReplicaLost))) == (3, gone)


def test_a_few_of_many_are_not_many(world: World) -> None:
    fleet(world, 20, models=20)
    hear(world, "n00", "n01", "n02", nothing=True)
    world.wait(12)
    assert not world.events(PlacingPaused)
    assert len(world.events(ReplicaLost)) == len(world.events(ReplicaPlaced)) - 20 > 0


def test_what_is_asked_for_meanwhile_is_placed_where_somebody_is_heard(world: World) -> None:
    fleet(world, 10, models=10)
    hear(world, *[f"n{i:02}" for i in range(5)], nothing=True)
    world.wait(10)
    world.define(model_spec("new"))
    world.wait(5)
    [where] = endpoints(world, "new")
    assert where >= "n05"


def test_those_that_stay_silent_are_taken_for_lost_in_the_end(world: World) -> None:
    fleet(world, 10, models=10)
    hear(world, *[f"n{i:02}" for i in range(5)], nothing=True)
    began = world.now
    world.wait(220)
    assert {e.deadline_ms for e in world.events(NodeLost)} == {120_000}
    times = [e.at - began for e in world.events(ReplicaLost)]
    assert len(times) == 5
    assert timedelta(seconds=119) <= min(times) <= max(times) <= timedelta(seconds=125)
    assert world.events(PlacingResumed)[0].reason == "0 of 5 machines were silent within the last 60 s"
    assert all(where >= "n05" for i in range(10) for where in endpoints(world, f"m{i:02}"))
    assert len(world.events(PlacingPaused)) == 1


def test_it_goes_on_when_nearly_all_are_heard_again(world: World) -> None:
    fleet(world, 10, models=10)
    hear(world, nothing=True)
    world.wait(10)
    hear(world, *[f"n{i:02}" for i in range(1, 10)], nothing=False)
    world.wait(90)
    assert world.events(PlacingResumed)[0].reason == "1 of 10 machines were silent within the last 60 s"
    assert {e.machine_id for e in world.events(ReplicaLost)} <= {"n00"}


def test_an_engine_that_gateways_find_dead_is_replaced_at_once_though_many_are_silent(world: World) -> None:
    fleet(world, 10, models=10)
    hear(world, *[f"n{i:02}" for i in range(5)], nothing=True)
    world.wait(10)
    dead = next(f"m{i:02}" for i in range(10) if endpoints(world, f"m{i:02}").popitem()[0] < "n05")
    world.use(dead, 0, unanswered=3)
    world.wait(10)
    assert [e.model for e in world.events(ReplicaLost)] == [dead]
    assert [where >= "n05" for where in endpoints(world, dead)] == [True]


def test_a_start_that_is_not_taken_up_is_waited_for_while_many_are_silent(world: World) -> None:
    fleet(world, 10)
    for machine in world.machines.values():
        machine.slow = 10**6  # it speaks at times, and does nothing
    world.define(model_spec())
    for _ in range(20):
        hear(world, nothing=True)
        world.wait(7)
        hear(world, nothing=False)
        world.wait(2)
    assert [r.phase for r in world.replicas()] == ["placed"]
    assert world.model().failures == 0
    for machine in world.machines.values():
        machine.slow = 1
    world.settle()
    assert len(world.serving()) == 1


def test_another_leader_goes_on_waiting(world: World) -> None:
    fleet(world, 10, models=10)
    hear(world, nothing=True)
    world.wait(10)
    world.reconciler, world.listening_since = world.leader(), world.now
    world.wait(30)
    assert len(world.events(PlacingPaused)) == 1
    assert not world.events(PlacingResumed)
    assert not world.events(ReplicaLost)


def test_a_deaf_leader_concludes_nothing_about_the_pause(world: World) -> None:
    fleet(world, 10, models=10)
    hear(world, nothing=True)
    world.wait(10)
    world.deaf = True
    world.wait(300, step=5)
    assert not world.events(PlacingResumed)


def test_the_words_for_a_person_carry_the_figures(world: World) -> None:
    assert silence.why_paused(world.state) == ""
    fleet(world, 10)
    hear(world, nothing=True)
    world.wait(10)
    assert silence.why_paused(world.state).startswith("10 of 10 machines fell silent together at 2026-11-29T12:00:")


# agents that begin anew


def test_an_agent_that_was_asked_to_begin_anew_is_not_lost_over_it(world: World) -> None:
    fleet(world, 2)
    world.define(model_spec())
    world.settle()
    [where] = endpoints(world)
    world.command(GiveErrand(machine_id=where, errand=Errand(kind="restart_agent")))
    number = world.log[-1][0]
    hear(world, where, nothing=True)
    world.wait(55)
    assert not world.events(NodeLost)
    hear(world, where, nothing=False)
    about = {"machine_id": where, "errand": number, "kind": "restart_agent", "outcome": "done"}
    world.append(MachineErrandEnded(at=world.now, **about))
    world.settle()
    hear(world, where, nothing=True)
    world.wait(10)
    assert world.events(NodeLost)[0].deadline_ms == 8_000


def test_an_agent_that_does_not_come_back_is_lost_after_a_minute(world: World) -> None:
    fleet(world, 2)
    world.command(GiveErrand(machine_id="n00", errand=Errand(kind="restart_agent")))
    hear(world, "n00", nothing=True)
    world.wait(65)
    [lost] = world.events(NodeLost)
    assert lost.silent_ms >= lost.deadline_ms == 60_000


# over several machines


@pytest.fixture
def together(world: World) -> World:
    for name in ("a", "b", "c"):
        world.machine(name, gpus=2, fabric="left")
    world.define(model_spec("m", 1, gpu_profile(gpus=2, nodes=2)))
    world.settle()
    return world


def test_ranks_that_serve_go_on_while_one_of_their_machines_is_silent(together: World) -> None:
    first, second = together.replicas()[0].machines
    hear(together, second, nothing=True)
    together.wait(20)
    assert together.events(ReplicaLost)
    assert endpoints(together) == {first: True}
    assert len(wanted_on(together.state, first)) == 1
    hear(together, second, nothing=False)
    together.settle()
    assert endpoints(together) == {first: False}
    assert len(together.events(ReplicaPlaced)) == len(together.events(ReplicaRecovered)) == 1


def test_what_is_left_of_them_makes_way_for_its_successor(together: World) -> None:
    second = together.replicas()[0].machines[1]
    hear(together, second, nothing=True)
    together.wait(30)
    assert len(together.events(ReplicaPlaced)) == 1
    together.wait(40)
    reasons = [e.reason for e in together.events(ReplicaDraining)]
    assert reasons == [f"{second} is lost for 30 s; its successor needs its room"]
    assert together.replicas("m", "ready")[0].machines == tuple(sorted({"a", "b", "c"} - {second}))
    assert list(endpoints(together).values()) == [False]


def test_what_answers_makes_no_way(together: World) -> None:
    second = together.replicas()[0].machines[1]
    together.use("m", 1, answered_ms=100)
    hear(together, second, nothing=True)
    together.wait(200, step=5)
    together.deaf = True
    together.wait(200, step=5)
    assert not together.events(ReplicaDraining)


def test_a_rank_that_dies_ends_the_rest_at_once(together: World) -> None:
    first, second = together.replicas()[0].machines
    hear(together, second, nothing=True)
    together.wait(15)
    together.machines[first].crash(next(iter(together.machines[first].shards)))
    together.wait(15)
    assert together.replicas("m", "ready")[0].machines == tuple(sorted({"a", "b", "c"} - {second}))


def test_a_removed_model_gives_its_room_back_where_it_can_be_heard(together: World) -> None:
    first, second = together.replicas()[0].machines
    hear(together, second, nothing=True)
    together.wait(15)
    together.command(RemoveModel(model="m"))
    together.settle()
    assert not together.machines[first].shards


def test_a_draining_replica_is_over_when_the_rank_that_serves_is(together: World) -> None:
    first, second = together.replicas()[0].machines
    begun = together.now
    together.machines[second].busy = set(together.machines[second].shards)  # it is never seen to be idle
    together.command(DrainNode(machine_id=first))
    together.command(DefineModel(spec=model_spec("m", 0, gpu_profile(gpus=2, nodes=2))))
    together.settle()
    [stopped] = together.events(ReplicaStopped)
    assert stopped.at - begun < timedelta(seconds=15)
    assert "no request is left" in stopped.reason
