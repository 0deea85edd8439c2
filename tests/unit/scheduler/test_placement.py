"""Where a replica goes and why: every check turns away by name, with the figures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.events.commands import CordonNode
from libs.events.machine import Gpu
from libs.events.model import AntiAffinity, ModelSpec, Profile
from libs.events.replica import ShardPlacement
from services.scheduler.core.inputs.heartbeats import Heartbeat, Heartbeats
from services.scheduler.core.placement.capacity import Capacity, usable_memory_mb
from services.scheduler.core.placement.search import Placement, place

from .harness import World, cpu_profile, gpu_profile, model_spec


def placement(world: World, spec: ModelSpec, heartbeats: Heartbeats | None = None) -> Placement:
    world.define(spec)
    world.react()
    world.define(model_spec(spec.name, 0, *spec.profiles, source=spec.source))
    world.settle()
    return place(world.state, world.model(spec.name), Capacity(world.state), heartbeats)


def test_the_figures_of_a_rejection() -> None:
    world = World()
    world.machine("a", memory_mb=8192)
    world.define(model_spec("big", 1, cpu_profile(memory_mb=6970)))
    world.settle()
    found = placement(world, model_spec("m", 1, cpu_profile(memory_mb=2048)))
    assert found.machine_id is None
    assert found.explanation.candidates[0].rejected == ("needs 2048 MB of memory, 813 MB free of 8192 MB",)
    assert found.explanation.rejected == {"memory": 1}
    assert found.explanation.considered == 1


@pytest.mark.parametrize(
    ("machine", "profile", "check", "sentence"),
    [
        ({"engines": ()}, cpu_profile(), "engine", "has no engine sim (it has none)"),
        ({}, cpu_profile(cores=9), "cores", "needs 9 CPU cores, 8 free of 8"),
        ({"labels": {"rack": "1"}}, cpu_profile(node_selector={"rack": "2"}), "labels",
         "needs the label rack=2 (it has 1)"),
        ({}, gpu_profile(), "gpu_class", "has no GPU of class h100-80g (it has none)"),
        ({"gpus": 1}, gpu_profile(gpu_class="a100"), "gpu_class", "has no GPU of class a100 (it has h100-80g)"),
        ({"gpus": 1, "gpus_state": "unverified", "gpus_reason": "NVML: driver mismatch"}, gpu_profile(), "gpu_class",
         "its GPUs cannot be read: NVML: driver mismatch"),
        ({"gpus": 2}, gpu_profile(gpus=3), "gpus",
         "needs 3 GPUs of class h100-80g, 2 free of 2"),
    ],
)  # fmt: skip
def test_each_check(machine: dict[str, Any], profile: Any, check: str, sentence: str) -> None:
    world = World()
    world.machine("a", **machine)
    found = placement(world, model_spec("m", 1, profile))
    assert found.explanation.rejected == {check: 1}
    assert found.explanation.candidates[0].rejected == (sentence,)


def test_what_a_machine_did_not_report_rejects_nothing() -> None:
    world = World()
    world.machine("a", engines=(), engines_probed=False, memory_mb=0, cores=0)
    assert placement(world, model_spec()).machine_id == "a"


def test_weights_must_be_in_the_library_and_served() -> None:
    world = World()
    world.machine("a")
    spec = model_spec("m", 1, source="library:w")
    assert placement(world, spec).explanation.candidates[0].rejected == ("the library has no w",)
    world.weights("w", "v1")
    assert placement(world, spec).explanation.candidates[0].rejected == ("no mirror serves w@v1",)
    world.mirror()
    found = placement(world, spec)
    assert (found.machine_id, found.weights) == ("a", "w@v1")


def test_telemetry_turns_away_a_full_disk_and_a_gpu_that_others_use() -> None:
    world = World()
    world.machine("g", gpus=2)
    world.mirror()
    world.weights("w", "v1", size_bytes=5_000_000_000)
    spec = model_spec("m", 1, gpu_profile(gpus=2), source="library:w")
    heard = {"g": Heartbeat(silent_ms=0, disk_free_mb=4000, foreign_mb={"g-gpu-1": 3000})}
    found = placement(world, spec, heard)
    assert found.explanation.rejected == {"gpus": 1, "disk": 1}
    assert found.explanation.candidates[0].rejected[1] == "needs 5000 MB of disk for the weights, 4000 MB free"


def test_a_gpu_with_a_problem_is_left_out() -> None:
    world = World()
    gpus = tuple(
        Gpu(index=i, uuid=f"u{i}", name="H", gpu_class="h100-80g", memory_total_mb=1, problems=problems)
        for i, problems in enumerate([("XID 79",), ()])
    )
    world.machine("g", gpus=0, gpus_state="verified")
    world.append(type(world.machines["g"].registered)(**{
        f: getattr(world.machines["g"].registered, f) for f in world.machines["g"].registered.__struct_fields__
    } | {"gpus": gpus, "gpus_state": "verified"}))  # fmt: skip
    assert placement(world, model_spec("m", 1, gpu_profile())).devices == ("u1",)


def test_a_node_that_is_not_ready_is_asked_no_more() -> None:
    world = World()
    world.machine("a", memory_mb=10)
    world.command(CordonNode(machine_id="a"))
    assert placement(world, model_spec()).explanation.rejected == {"node": 1}


def test_every_rejection_is_counted_and_the_summary_names_an_example() -> None:
    world = World()
    world.machine("a", memory_mb=100)
    world.machine("b", memory_mb=100, cores=0, engines=())
    world.machine("c", engines=())
    found = placement(world, model_spec("m", 1, cpu_profile(memory_mb=500)))
    assert found.explanation.rejected == {"memory": 2, "engine": 2}
    assert found.explanation.summary.startswith("none of 3 machines can take it: memory turned away 2 (a: needs 500 MB")


def test_the_profile_of_the_highest_priority_that_fits_anywhere_is_taken() -> None:
    world = World()
    world.machine("a", gpus=1)
    world.machine("b")
    profiles = (cpu_profile("slow"), gpu_profile("two", gpus=2, priority=9), gpu_profile("one", priority=5))
    found = placement(world, model_spec("m", 1, *profiles))
    assert found.profile is not None
    assert (found.machine_id, found.profile.name) == ("a", "one")
    assert found.explanation.rejected == {"gpus": 1, "gpu_class": 1}


def test_weights_already_there_beat_an_emptier_machine() -> None:
    world = World()
    world.machine("small", memory_mb=8192)
    world.mirror()
    world.weights("w", "v1")
    world.define(model_spec("x", source="library:w"))
    world.settle()
    world.machine("large", memory_mb=80_000)
    assert placement(world, model_spec("m", source="library:w")).machine_id == "small"
    assert placement(world, model_spec("n")).machine_id == "large"


def test_replicas_of_one_model_spread_and_gpu_models_pack() -> None:
    world = World()
    for machine_id in ("a", "b", "c"):
        world.machine(machine_id, gpus=8)
    world.define(model_spec("m", 3))
    world.settle()
    assert world.serving() == ["a", "b", "c"]
    for name in ("x", "y", "z"):
        world.define(model_spec(name, 1, gpu_profile(gpus=2)))
        world.settle()
    assert {world.serving(name)[0] for name in ("x", "y", "z")} == {"a"}


def test_explanations_are_bounded() -> None:
    world = World()
    for i in range(200):
        world.machine(f"m{i:03}", memory_mb=10 if i % 2 else 8192)
    found = placement(world, model_spec())
    assert len(found.explanation.candidates) <= 16
    assert found.explanation.candidates[0].machine_id == found.machine_id == "m000"
    nowhere = placement(world, model_spec("n", 1, cpu_profile(memory_mb=10**6)))
    assert len(nowhere.explanation.candidates) == 64
    assert nowhere.explanation.rejected == {"memory": 200}


def test_room_given_in_this_round_is_gone_and_supposed_room_is_there() -> None:
    world = World()
    world.machine("a", cores=2)
    world.define(model_spec())
    world.settle()
    machine = world.state.facts.machines["a"]
    capacity = Capacity(world.state)
    assert capacity.free(machine).cores == 1
    capacity.reserve("m", ShardPlacement(shard_id="r-x-0", machine_id="a", cores=1, memory_mb=10))
    assert capacity.free(machine).cores == 0
    assert capacity.without(world.replicas()[0].shards).free(machine).cores == 1
    assert capacity.free(machine).memory_mb == usable_memory_mb(8192) - 1000 - 10


def _apart(within: str, *models: str) -> dict[str, Any]:
    return {"anti_affinity": (AntiAffinity(models=models, within=within),)}


def test_replicas_that_keep_apart_take_a_machine_each() -> None:
    world = World()
    for name in "ab":
        world.machine(name)
    world.define(model_spec("m", 3, **_apart("node")))
    world.settle()
    assert sorted(r.machines for r in world.replicas("m", "ready")) == [("a",), ("b",)]
    unplaced = place(world.state, world.model(), Capacity(world.state), None).explanation
    assert unplaced.rejected == {"anti_affinity": 2}
    said = {c.machine_id: c.rejected for c in unplaced.candidates}
    on_a = next(r.replica_id for r in world.replicas("m") if r.machines == ("a",))
    assert said["a"] == (f"has {on_a} of m, and replicas of this model keep to different machines",)
    world.machine("c")
    world.settle()
    assert len(world.replicas("m", "ready")) == 3


def test_racks_are_kept_apart_too() -> None:
    world = World()
    for name, rack in (("a", "1"), ("b", "1"), ("c", "2")):
        world.machine(name, labels={"rack": rack})
    world.define(model_spec("m", 3, **_apart("rack")))
    world.settle()
    racks = [world.machines[r.machines[0]].registered.labels["rack"] for r in world.replicas("m", "ready")]
    assert sorted(racks) == ["1", "2"]
    unplaced = world.model("m").unplaced
    assert unplaced is not None
    assert unplaced.rejected == {"anti_affinity": 3}
    assert any("its rack 1 has" in c.rejected[0] for c in unplaced.candidates)


def test_a_rule_holds_whoever_was_there_first() -> None:
    world = World()
    world.machine("a")
    world.define(model_spec("first", 1, cpu_profile(cores=5)))
    world.settle()
    world.define(model_spec("wary", 1, **_apart("node", "first")))
    world.settle()
    assert world.replicas("wary") == []
    world.machine("b")
    world.settle()
    assert world.replicas("wary", "ready")[0].machines == ("b",)
    # The other way round: what it keeps away from is kept away from it.
    world.define(model_spec("first", 2, cpu_profile(cores=5)))
    world.settle()
    assert [r.machines for r in world.replicas("first")] == [("a",)]
    unplaced = world.model("first").unplaced
    assert unplaced is not None
    assert unplaced.rejected == {"cores": 1, "anti_affinity": 1}


def test_a_changed_definition_of_one_that_keeps_apart_is_rolled_out_without_a_spare_machine() -> None:
    world = World()
    for name in "ab":
        world.machine(name)
    world.define(model_spec("m", 2, **_apart("node")))
    world.settle()
    world.define(model_spec("m", 2, context_length=2048, **_apart("node")))
    world.settle(40)
    replicas = world.replicas("m")
    assert sorted(r.machines for r in replicas) == [("a",), ("b",)]
    assert {(r.phase, r.context_length) for r in replicas} == {("ready", 2048)}


def test_of_a_lost_machine_nobody_keeps_away() -> None:
    world = World()
    for name in "ab":
        world.machine(name, labels={"rack": "1"})
    world.define(model_spec("m", 1, **_apart("rack")))
    world.settle()
    [replica] = world.replicas("m")
    world.machines[replica.machines[0]].up = False
    world.wait(20)
    assert len(world.replicas("m", "ready")) == 1


def _say_of_card(world: World, machine_id: str, index: int, *problems: str, **fields: Any) -> None:
    facts = world.state.facts.machines[machine_id].facts
    fields["problems"] = problems
    gpus = tuple(msgspec.structs.replace(gpu, **fields) if gpu.index == index else gpu for gpu in facts.gpus)
    world.append(msgspec.structs.replace(facts, at=world.now, gpus=gpus))


def test_a_suspect_card_gets_nothing_new_and_keeps_what_it_has_until_it_is_well() -> None:
    world = World()
    world.machine("a", gpus=1)
    world.define(model_spec("m", 1, gpu_profile()))
    world.settle()
    [replica] = world.replicas("m", "ready")
    _say_of_card(world, "a", 0, "it reported XID 48 (an error in its memory that could not be corrected)")
    world.settle()
    assert [r.replica_id for r in world.replicas("m", "ready")] == [replica.replica_id]
    world.machines["a"].crash(f"{replica.replica_id}-0")
    world.settle()
    assert world.replicas("m", "placed", "ready") == []
    unplaced = world.model().unplaced
    assert unplaced is not None
    assert "GPU 0 is suspect: it reported XID 48" in unplaced.summary
    _say_of_card(world, "a", 0)
    world.settle(20)
    assert len(world.replicas("m", "ready")) == 1


def test_a_card_that_is_held_back_comes_last_and_is_used_all_the_same() -> None:
    world = World()
    for name in "ab":
        world.machine(name, gpus=1)
    _say_of_card(world, "a", 0, power_limit_watts=300, power_default_watts=700)
    world.define(model_spec("m", 1, gpu_profile()))
    world.settle()
    [replica] = world.replicas("m", "ready")
    assert replica.machines == ("b",)
    assert "before a: the cards there are not slowed down" in replica.explanation.summary
    world.define(model_spec("n", 1, gpu_profile()))
    world.settle()
    assert world.replicas("n", "ready")[0].machines == ("a",)


def test_a_program_s_own_error_says_nothing_of_the_card() -> None:
    world = World()
    world.machine("a", gpus=1)
    _say_of_card(world, "a", 0, "XID 31: a program touched memory that is not its own")
    world.define(model_spec("m", 1, gpu_profile()))
    world.settle()
    assert len(world.replicas("m", "ready")) == 1


def test_a_card_that_shares_the_machines_memory_and_the_machine_are_one_room() -> None:
    card = Gpu(
        index=0, uuid="u0", name="NVIDIA GB10", gpu_class="gb10-120g", memory_total_mb=120_000, unified_memory=True
    )
    on_card = gpu_profile(gpu_class="gb10-120g", min_gpu_memory_mb=60_000)

    def beside(spec: ModelSpec, wanted: Profile) -> Placement:
        world = World()
        world.machine("g", memory_mb=120_000, gpus=(card,))
        world.define(spec)
        world.settle()
        return placement(world, model_spec("m", 1, wanted))

    assert beside(model_spec("large", 1, cpu_profile(memory_mb=70_000)), on_card).machine_id is None
    assert beside(model_spec("small", 1, cpu_profile(memory_mb=10_000)), on_card).devices == ("u0",)
    # What is on the card takes what the machine has.
    assert beside(model_spec("first", 1, on_card), cpu_profile(memory_mb=1000)).machine_id is None


def test_the_machine_that_lacks_least_is_told_first() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.machine(name)
    world.machine("z", gpus=1)
    world.define(model_spec("first", 1, gpu_profile()))
    world.settle()
    found = placement(world, model_spec("m", 1, gpu_profile()))
    assert found.explanation.rejected == {"gpu_class": 3, "gpus": 1}
    assert found.explanation.summary.startswith("none of 4 machines can take it: gpus turned away 1 (z: needs 1 GPU")
    assert [candidate.machine_id for candidate in found.explanation.candidates] == ["z", "a", "b", "c"]
