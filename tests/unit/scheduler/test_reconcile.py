"""Wanted against actual: given what is there, when something happens, then this follows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from libs.events.commands import CordonNode, DrainNode, RemoveModel, RestartModel, ScaleModel, StopModel, UncordonNode
from libs.events.model import ModelParked, ModelUnplaced, Scaling
from libs.events.node import NodeLost, NodeReturned
from libs.events.replica import (
    ReplicaDraining,
    ReplicaFailed,
    ReplicaLost,
    ReplicaPlaced,
    ReplicaRecovered,
    ReplicaStopped,
)
from libs.events.shard import ShardAdopted, ShardReady, ShardStarting, ShardStopped
from services.scheduler.core.reconciler import model_reconciler
from services.scheduler.core.views.routes import route

from .harness import World, cpu_profile, gpu_profile, index_follows_facts, model_spec, no_double_holding, really_free


@pytest.fixture
def world() -> World:
    world = World()
    world.checks = [no_double_holding, index_follows_facts, really_free]
    return world


def test_a_defined_model_is_placed_started_and_routed(world: World) -> None:
    world.machine()
    world.define(model_spec())
    world.settle()
    assert world.serving() == ["cpu-1"]
    assert world.diary() == [
        "MachineRegistered", "ModelDefined", "NodeJoined", "ReplicaPlaced",
        "ShardStarting", "ShardLoading", "ShardReady", "ReplicaReady",
    ]  # fmt: skip


def test_deciding_again_on_the_same_state_says_the_same_and_settled_says_nothing(world: World) -> None:
    world.machine()
    world.define(model_spec(replicas=3))
    world.react()
    placed = world.events(ReplicaPlaced)
    assert len({p.replica_id for p in placed}) == 3
    assert world.react() == []


def test_causes_tell_occurrences_apart(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    for _ in range(3):
        machine.connected = False
        world.wait(12)
        machine.connected = True
        world.settle()
    ids = [f"{cause}/{type(e).__name__}/{getattr(e, 'replica_id', getattr(e, 'machine_id', ''))}"
           for cause, (_, e) in zip(world.causes, world.log, strict=True) if cause and cause != "c-1"]  # fmt: skip
    assert len(ids) == len(set(ids))


def test_a_model_defined_before_its_machine_waits_for_it(world: World) -> None:
    world.define(model_spec())
    world.settle()
    [unplaced] = world.events(ModelUnplaced)
    assert unplaced.explanation.summary == "no machine has registered yet"
    world.machine()
    world.settle()
    assert world.serving() == ["cpu-1"]
    assert world.model().unplaced is None


def test_scaling_up_adds_and_scaling_down_drains_the_youngest(world: World) -> None:
    world.machine("cpu-1")
    world.machine("cpu-2")
    world.define(model_spec())
    world.settle()
    [first] = world.replicas()
    world.command(ScaleModel(model="m", scaling=Scaling(min=3)))
    world.settle()
    assert len(world.serving()) == 3
    world.command(ScaleModel(model="m", scaling=Scaling(min=1)))
    world.settle()
    assert [r.replica_id for r in world.replicas()] == [first.replica_id]
    world.command(ScaleModel(model="m", scaling=Scaling(min=0)))
    world.settle()
    assert world.replicas() == []
    assert "m" in world.state.facts.models


def test_a_removed_model_is_stopped_and_forgotten(world: World) -> None:
    world.machine()
    world.define(model_spec(replicas=2))
    world.settle()
    world.command(RemoveModel(model="m"))
    world.settle()
    assert world.state.facts.models == {}
    assert world.state.facts.replicas == {}
    assert world.machines["cpu-1"].shards == {}


def test_a_replica_that_serves_is_drained_and_keeps_its_room_until_its_shard_is_gone(world: World) -> None:
    machine = world.machine(cores=1)
    world.define(model_spec())
    world.settle()
    [replica] = world.replicas()
    machine.busy = set(machine.shards)
    world.command(RemoveModel(model="m"))
    world.define(model_spec("n"))
    world.settle()
    assert replica.phase == "draining"
    assert world.replicas("n") == []
    machine.busy.clear()
    world.settle()
    assert world.serving("n") == ["cpu-1"]


def test_draining_ends_after_its_grace(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    machine.busy = set(machine.shards)
    world.command(RemoveModel(model="m"))
    world.wait(310, step=5)
    assert world.diary()[-4:] == ["ReplicaDraining", "ReplicaStopping", "ShardStopped", "ReplicaStopped"]


# failures


def test_a_crashed_engine_is_replaced_at_once(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    [shard_id] = machine.shards
    machine.crash(shard_id)
    world.settle()
    [failed] = world.events(ReplicaFailed)
    assert failed.failures == 1
    assert failed.retry_at is None
    assert "failed on cpu-1 while ready: the engine was killed" in failed.reason
    assert world.serving() == ["cpu-1"]


def test_repeated_failures_back_off_and_park(world: World) -> None:
    machine = world.machine()
    machine.fails["m"] = "out of memory"
    world.define(model_spec())
    world.wait(400)
    failed = world.events(ReplicaFailed)
    assert [f.failures for f in failed] == [1, 2, 3, 4, 5]
    waits = [(f.retry_at - f.at).total_seconds() if f.retry_at else 0 for f in failed]
    assert waits == [0, 10, 20, 40, 80]
    [parked] = world.events(ModelParked)
    assert "out of memory" in parked.reason
    assert world.replicas() == []


def test_a_parked_model_starts_again_by_hand_or_when_redefined(world: World) -> None:
    machine = world.machine()
    machine.fails["m"] = "out of memory"
    world.define(model_spec())
    world.wait(400)
    machine.fails.clear()
    world.wait(60)
    assert world.serving() == []
    world.command(RestartModel(model="m"))
    world.settle()
    assert world.serving() == ["cpu-1"]

    machine.fails["n"] = "out of memory"
    world.define(model_spec("n"))
    world.wait(400)
    machine.fails.clear()
    assert world.model("n").parked
    world.define(model_spec("n", context_length=2048))
    world.settle()
    assert world.serving("n") == ["cpu-1"]


def test_several_replicas_failing_together_count_once(world: World) -> None:
    machine = world.machine(cores=16, memory_mb=65536)
    world.define(model_spec(replicas=8))
    world.settle()
    machine.reboot()
    world.settle()
    assert {f.failures for f in world.events(ReplicaFailed)} == {1}
    assert len(world.serving()) == 8


def test_failures_long_apart_are_not_in_a_row(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    for _ in range(7):
        world.wait(90, step=5)
        machine.crash(next(iter(machine.shards)))
    world.settle()
    assert {f.failures for f in world.events(ReplicaFailed)} == {1}
    assert world.model().parked is None


def test_an_engine_that_crashes_soon_after_every_start_is_parked(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    for _ in range(200):
        world.step(2)
        for shard_id, (_, phase) in list(machine.shards.items()):
            if phase == "ready":
                machine.crash(shard_id)
    assert world.model().parked


def test_the_next_try_goes_elsewhere(world: World) -> None:
    bad, _ = world.machine("a"), world.machine("b")
    bad.fails["m"] = "bad card"
    world.define(model_spec())
    world.settle()
    assert [p.shards[0].machine_id for p in world.events(ReplicaPlaced)] == ["a", "b"]
    assert world.serving() == ["b"]


def test_a_start_without_progress_fails_with_its_phase(world: World) -> None:
    machine = world.machine()
    machine.stuck.add("m")
    world.define(model_spec("m", 1, cpu_profile(startup_timeout_s=60)))
    world.wait(85)
    assert world.events(ReplicaFailed) == [], "its agent is to say so first"
    world.wait(15)
    failed = world.events(ReplicaFailed)[0]
    assert "no progress on cpu-1 for 90 s while loading" in failed.reason


def test_an_engine_whose_memory_grows_makes_progress(world: World) -> None:
    from services.scheduler.core.inputs.heartbeats import Heartbeat

    machine = world.machine()
    machine.stuck.add("m")
    world.define(model_spec("m", 1, cpu_profile(startup_timeout_s=60)))
    world.settle()
    [shard_id] = machine.shards
    shards = frozenset({shard_id})
    world.heartbeats = lambda: {"cpu-1": Heartbeat(silent_ms=0, shards=shards, moved_ms={shard_id: 800})}  # type: ignore[method-assign]
    world.wait(600, step=10)
    assert world.events(ReplicaFailed) == []
    world.heartbeats = lambda: {"cpu-1": Heartbeat(silent_ms=0, shards=shards, moved_ms={shard_id: 95_000})}  # type: ignore[method-assign]
    world.step()
    assert "no progress on cpu-1 for 95 s while loading" in world.events(ReplicaFailed)[0].reason


def test_weights_that_still_arrive_are_progress(world: World) -> None:
    from libs.events import shard as facts
    from services.scheduler.core.inputs.heartbeats import Heartbeat

    world.machine("cpu-1")
    world.machines.clear()
    world.weights("w", "v1")
    world.mirror()
    world.define(model_spec("m", 1, cpu_profile(startup_timeout_s=60), source="library:w"))
    world.react()
    [replica] = world.replicas()
    world.append(
        facts.ShardStarting(
            at=world.now, machine_id="cpu-1", shard_id=f"{replica.replica_id}-0", replica_id=replica.replica_id,
            model="m", generation=1, engine="sim",
        )
    )  # fmt: skip
    fetching = {"cpu-1": Heartbeat(silent_ms=0, fetching_ms={"w@v1": 500})}
    world.heartbeats = lambda: fetching  # type: ignore[method-assign]
    world.wait(600, step=10)
    assert world.events(ReplicaFailed) == []
    world.heartbeats = lambda: {"cpu-1": Heartbeat(silent_ms=0)}  # type: ignore[method-assign]
    world.step()
    assert "while starting" in world.events(ReplicaFailed)[0].reason


def test_a_machine_that_does_not_take_a_shard_up_is_left(world: World) -> None:
    deaf, _ = world.machine("a"), world.machine("b")
    deaf.step = lambda: setattr(deaf, "last_heard", world.now)  # type: ignore[method-assign]
    world.define(model_spec())
    world.react()
    world.heartbeats = lambda: None  # type: ignore[method-assign]
    world.wait(300, step=5)
    assert world.events(ReplicaFailed) == []
    del world.heartbeats  # type: ignore[method-assign]
    world.wait(12)
    assert "a did not take it up within 120 s" in world.events(ReplicaFailed)[0].reason
    world.wait(15)
    assert world.serving() == ["b"]
    assert "a" not in {m for r in world.replicas() for m in r.machines}


def test_a_shard_stopped_on_its_machine_is_no_failure(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    [shard_id] = machine.shards
    machine._end(shard_id, ShardStopped, reason="the machine goes down")
    world.settle()
    assert world.events(ReplicaFailed) == []
    assert world.events(ReplicaStopped)[0].reason == "cpu-1 stopped it: the machine goes down"
    assert world.serving() == ["cpu-1"]


# machines lost and back


def test_a_silent_machine_is_lost_and_its_replica_replaced(world: World) -> None:
    world.machine("a")
    world.machine("b")
    world.define(model_spec())
    world.settle()
    [where] = world.serving()
    world.machines[where].connected = False
    world.wait(6)
    assert world.events(NodeLost) == []
    world.wait(6)
    [lost] = world.events(NodeLost)
    assert lost.silent_ms >= 8000
    assert lost.deadline_ms == 8000
    other = ({"a", "b"} - {where}).pop()
    world.settle()
    assert world.serving() == [other]


def test_nobody_is_lost_while_the_leader_itself_is_deaf(world: World) -> None:
    world.machine()
    world.define(model_spec())
    world.settle()
    world.machines["cpu-1"].connected = False
    world.deaf = True
    world.wait(60)
    assert world.events(NodeLost) == []
    world.deaf = False
    world.listening_since = world.now
    world.wait(7)
    assert world.events(NodeLost) == []


def test_who_hears_nobody_places_nothing(world: World) -> None:
    """It cannot tell a machine that takes work up from one that fell silent meanwhile."""
    world.machine()
    world.settle()
    world.deaf = True
    world.define(model_spec())
    world.wait(60)
    assert world.replicas() == []
    world.deaf = False
    world.listening_since = world.now
    world.settle()
    assert world.serving() == ["cpu-1"]


def test_a_machine_that_comes_back_with_its_engine_is_adopted(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    [shard_id] = machine.shards
    machine.connected = False
    world.wait(30)
    assert len(world.events(ReplicaLost)) == 1
    assert world.serving() == ["cpu-1"], "its engine may be there, and nobody serves in its place"
    machine.connected = True
    world.settle()
    assert world.events(NodeReturned)[0].away_ms > 0
    assert len(world.events(ReplicaRecovered)) == 1
    assert world.serving() == ["cpu-1"]
    assert list(machine.shards) == [shard_id]
    assert len(world.events(ReplicaPlaced)) == 1


def test_a_returned_engine_that_was_replaced_is_stopped_and_its_room_free_only_then(world: World) -> None:
    first = world.machine("a", cores=1)
    world.machine("b", cores=1)
    world.define(model_spec())
    world.settle()
    assert world.serving() == ["a"]
    [shard_id] = first.shards
    first.connected = False
    world.wait(30)
    assert world.serving() == ["b"]
    first.connected = True
    first.busy = {shard_id}
    world.settle()
    assert world.serving() == ["b"]
    assert list(first.shards) == [shard_id], "it finishes what it has"
    first.busy = set()
    world.settle()
    assert "others serve in its place since a was lost" in [e.reason for e in world.events(ReplicaStopped)]
    assert first.shards == {}


def test_a_returned_engine_is_preferred_to_a_replacement_that_still_loads(world: World) -> None:
    first, second = world.machine("a"), world.machine("b")
    world.define(model_spec())
    world.settle()
    second.stuck.add("m")
    first.connected = False
    world.wait(20)
    assert [r.phase for r in world.replicas()] == ["lost", "placed"]
    first.connected = True
    world.settle()
    assert world.serving() == ["a"]
    assert len(world.replicas()) == 1


def test_an_engine_that_died_while_its_machine_was_away_is_not_a_failure(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    machine.up = False
    world.wait(20)
    machine.reboot()
    world.settle()
    assert world.events(ReplicaFailed) == []
    assert world.serving() == ["cpu-1"]


def test_a_machine_that_comes_back_with_nothing_and_no_notes(world: World) -> None:
    machine = world.machine("a")
    world.machine("b")
    world.define(model_spec())
    world.settle()
    machine.up = False
    world.wait(20)
    assert world.serving() == ["b"]
    machine.wipe()
    world.wait(60)
    assert world.serving() == ["b"]
    assert len(world.replicas()) == 1
    assert not world.state.held["a"]


def test_an_agent_that_lost_its_notes_and_starts_anew_is_noticed(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    machine.wipe()
    world.settle()
    [failed] = world.events(ReplicaFailed)
    assert "starts it anew" in failed.reason
    assert world.serving() == ["cpu-1"]
    assert len(machine.shards) == 1


def test_an_engine_taken_over_at_another_address_is_routed_there(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    [(shard, _)] = machine.shards.values()
    machine.say(ShardAdopted(**machine._about(shard), pid=1, url="http://cpu-1:2", ready=True))
    world.settle()
    assert [e.url for e in route(world.state, world.model()).endpoints] == ["http://cpu-1:2"]
    assert len(world.events(ReplicaPlaced)) == 1


def test_an_agent_that_restarts_changes_nothing(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    before = len(world.events(ReplicaPlaced)), world.serving()
    machine.restart_agent()
    world.settle()
    assert (len(world.events(ReplicaPlaced)), world.serving()) == before


def test_a_shard_nobody_asked_for_blocks_its_machine_until_it_is_gone(world: World) -> None:
    machine = world.machine()
    orphan = {"at": world.now, "machine_id": "cpu-1", "shard_id": "r-old-0", "replica_id": "r-old", "model": "old"}
    world.append(ShardStarting(**orphan, generation=1, engine="sim"))
    world.define(model_spec())
    world.settle(steps=3)
    [unplaced] = world.events(ModelUnplaced)
    assert unplaced.explanation.rejected == {"orphans": 1}
    world.append(ShardStopped(**orphan, generation=1))
    world.settle()
    assert world.serving() == ["cpu-1"]

    # One that is never spoken of again is gone when its machine shows no process of it.
    world.append(ShardStarting(**orphan | {"at": world.now}, generation=1, engine="sim"))
    assert machine.shards
    world.wait(40)
    assert world.state.facts.machines["cpu-1"].orphans == {}


def test_a_machine_that_speaks_of_another_s_replica_ends_nothing(world: World) -> None:
    for name in ("cpu-1", "cpu-2"):
        world.machine(name)
    world.define(model_spec())
    world.settle()
    [holder] = world.serving()
    liar = "cpu-2" if holder == "cpu-1" else "cpu-1"
    [replica] = world.state.facts.replicas.values()
    claim = {"at": world.now - timedelta(days=1), "machine_id": liar, "shard_id": f"{replica.replica_id}-0"}
    claim |= {"replica_id": replica.replica_id, "model": replica.model, "generation": 1}
    world.append(ShardReady(**claim, pid=1, url="http://elsewhere:1", loaded_ms=1))
    world.wait(60)
    assert world.serving() == [holder]
    assert [endpoint.machine_id for endpoint in route(world.state, world.model()).endpoints] == [holder]
    assert len(world.events(ReplicaPlaced)) == 1


# definitions, cordons, drains


def test_a_changed_definition_rolls_new_ready_before_old_drains(world: World) -> None:
    world.machine()
    world.define(model_spec(replicas=2))
    world.settle()
    old = {r.replica_id for r in world.replicas()}
    least: list[int] = []
    world.checks.append(lambda w: least.append(len(w.serving())))
    world.define(model_spec(replicas=2, context_length=2048))
    world.settle(steps=30)
    assert min(least) == 2
    assert not old & {r.replica_id for r in world.replicas()}
    assert len(world.serving()) == 2
    live = [r for r in world.replicas() if r.phase in ("placed", "ready")]
    assert len(live) == 2


def test_without_room_the_old_one_is_stopped_first(world: World) -> None:
    world.machine(cores=1)
    world.define(model_spec())
    world.settle()
    world.define(model_spec(context_length=2048))
    world.settle(steps=20)
    assert world.serving() == ["cpu-1"]
    assert world.replicas()[0].fingerprint == world.model().fingerprint
    assert "its successor needs its room" in world.events(ReplicaDraining)[0].reason
    assert world.events(ModelUnplaced) == []


def test_an_old_one_is_kept_if_its_successor_would_not_fit_anyway(world: World) -> None:
    world.machine(memory_mb=4096)
    world.define(model_spec())
    world.settle()
    world.define(model_spec("m", 1, cpu_profile(memory_mb=100_000)))
    world.settle(steps=20)
    assert world.serving() == ["cpu-1"]
    assert world.events(ModelUnplaced)[0].explanation.rejected == {"memory": 1}


def test_when_new_ones_fail_the_old_ones_go_on_serving(world: World) -> None:
    machine = world.machine(cores=3)
    world.define(model_spec(replicas=2))
    world.settle()
    machine.fails["m"] = "bad argument"
    world.define(model_spec(replicas=2, context_length=2048))
    world.wait(400)
    assert world.model().parked
    assert len(world.serving()) == 2


def test_only_what_decides_how_it_runs_restarts_it(world: World) -> None:
    world.machine()
    world.define(model_spec())
    world.settle()
    world.define(model_spec(aliases=("other",), description="d", max_output_tokens=100))
    world.settle()
    assert len(world.events(ReplicaPlaced)) == 1


def test_newer_weights_replace_older_ones_and_a_pinned_version_stays(world: World) -> None:
    world.machine()
    world.mirror()
    world.weights("w", "v1")
    world.define(model_spec("follows", source="library:w"))
    world.define(model_spec("pinned", source="library:w@v1"))
    world.settle()
    world.weights("w", "v2")
    world.settle(steps=20)
    assert [r.weights for r in world.replicas("follows")] == ["w@v2"]
    assert [r.weights for r in world.replicas("pinned")] == ["w@v1"]
    assert len(world.events(ReplicaPlaced)) == 3


def test_a_cordoned_node_keeps_what_it_has_and_gets_nothing_new(world: World) -> None:
    world.machine("a")
    world.define(model_spec())
    world.settle()
    world.command(CordonNode(machine_id="a", reason="new fan"))
    world.command(ScaleModel(model="m", scaling=Scaling(min=2)))
    world.settle()
    assert world.serving() == ["a"]
    [unplaced] = world.events(ModelUnplaced)
    assert unplaced.explanation.candidates[0].rejected == ("is cordoned: new fan",)
    world.command(UncordonNode(machine_id="a"))
    world.settle()
    assert world.serving() == ["a", "a"]


def test_a_drained_node_is_emptied_after_its_replicas_serve_elsewhere(world: World) -> None:
    world.machine("a")
    world.define(model_spec(replicas=2))
    world.settle()
    world.machine("b")
    least: list[int] = []
    world.checks.append(lambda w: least.append(len(w.serving())))
    world.command(DrainNode(machine_id="a", reason="disk"))
    world.settle(steps=30)
    assert world.serving() == ["b", "b"]
    assert min(least) == 2
    assert world.machines["a"].shards == {}


def test_a_drained_node_with_nowhere_to_go_keeps_serving(world: World) -> None:
    world.machine("a")
    world.define(model_spec())
    world.settle()
    world.command(DrainNode(machine_id="a"))
    world.settle()
    assert world.serving() == ["a"]
    assert world.model().unplaced is not None


# devices


def test_gpus_are_given_whole_and_once(world: World) -> None:
    world.machine("g", gpus=4)
    world.define(model_spec("m", 3, gpu_profile(gpus=2)))
    world.settle()
    assert world.serving() == ["g", "g"]
    held = [d for r in world.replicas() for s in r.shards.values() for d in s.placement.devices]
    assert sorted(held) == [f"g-gpu-{i}" for i in range(4)]
    [unplaced] = world.events(ModelUnplaced)
    assert "needs 2 GPUs of class h100-80g, 0 free of 4 (4 held by replicas" in unplaced.explanation.summary


def test_one_decision_stands_however_many_models_want_the_same_room(world: World) -> None:
    world.machine("g", gpus=2)
    for name in ("x", "y", "z"):
        world.define(model_spec(name, 1, gpu_profile()))
    world.settle()
    assert sum(len(world.serving(name)) for name in ("x", "y", "z")) == 2


def test_commands_cause_a_bounded_number_of_events(world: World) -> None:
    for i in range(20):
        world.machine(f"cpu-{i}")
    world.define(model_spec(replicas=40))
    before = len(world.log)
    world.react()
    assert len(world.log) - before <= 20 + 40
    world.settle()
    before = len(world.log)
    world.wait(60)
    assert len(world.log) == before


def test_a_fact_about_one_model_makes_the_leader_look_at_that_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = world.machine(cores=64, memory_mb=10**6)
    for i in range(30):
        world.define(model_spec(f"m{i}"))
    world.settle(40)
    looked: list[str] = []
    decide = model_reconciler.ModelReconciler.decide

    def counted(self: model_reconciler.ModelReconciler) -> None:
        looked.append(self.model.name)
        decide(self)

    monkeypatch.setattr(model_reconciler.ModelReconciler, "decide", counted)
    world.reconciler.react(world.state, world.heartbeats(), world.now)
    assert looked == []
    machine.crash(world.replicas("m7")[0].replica_id + "-0")
    world.reconciler.react(world.state, world.heartbeats(), world.now)
    assert looked == ["m7"]


def test_a_model_that_was_stopped_and_removed_starts_afresh_when_it_is_defined_again(world: World) -> None:
    machine = world.machine()
    world.define(model_spec())
    world.settle()
    machine.busy = set(machine.shards)
    world.command(StopModel(model="m", reason="for now"))
    world.command(RemoveModel(model="m"))
    world.settle()
    assert [replica.phase for replica in world.replicas()] == ["draining"]
    world.define(model_spec())
    machine.busy = set()
    world.settle()
    assert world.model().stopped is None
    assert world.serving() == ["cpu-1"]
