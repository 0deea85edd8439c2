"""How many are wanted: stopped and started, on demand, by use, on trial; and whose room is taken."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from libs.events.commands import (
    CapRack,
    LendNode,
    PromoteModel,
    ReclaimNode,
    RestartModel,
    RollBackModel,
    ScaleModel,
    StartModel,
    StartSystem,
    StopModel,
    StopSystem,
    WakeModel,
)
from libs.events.model import (
    Canary,
    ModelAutoscaled,
    ModelPromoted,
    ModelRestarted,
    ModelRolledBack,
    ModelSlept,
    ModelSpec,
    ModelStopped,
    ModelUnplaced,
    ModelWoken,
    Scaling,
)
from libs.events.replica import ReplicaDraining, ReplicaFailed, ReplicaPlaced
from services.scheduler.core.reconciler.reconcile import Reconciler
from services.scheduler.core.state.evolve import evolve
from services.scheduler.core.state.state import State
from services.scheduler.core.views.model_views import model_view
from services.scheduler.core.views.routes import route

from .harness import (
    World,
    cpu_profile,
    gpu_profile,
    index_follows_facts,
    model_spec,
    no_double_holding,
    really_free,
)


@pytest.fixture
def world() -> World:
    world = World()
    world.checks = [no_double_holding, index_follows_facts, really_free]
    return world


def scaled(spec: ModelSpec, **scaling: Any) -> ModelSpec:
    import msgspec

    return msgspec.structs.replace(spec, scaling=Scaling(**scaling))


# stopping and starting


def test_a_stopped_model_says_so_and_starts_again_as_it_was(world: World) -> None:
    world.machine()
    world.define(model_spec(replicas=2))
    world.settle()
    world.command(StopModel(model="m", reason="too dear"))
    world.settle()
    assert world.replicas() == []
    shown = route(world.state, world.model())
    assert (shown.stopped, shown.stopped_reason, shown.endpoints) == ("model_stopped", "too dear", ())
    assert model_view(world.state, world.model()).reason == "the model is stopped: too dear"
    assert world.command(StopModel(model="m", reason="too dear")) is None
    world.command(StartModel(model="m"))
    world.settle()
    assert len(world.serving()) == 2
    assert world.command(StartModel(model="m")) is None


def test_scaling_a_stopped_model_starts_it(world: World) -> None:
    world.machine()
    world.define(model_spec(replicas=2))
    world.command(StopModel(model="m"))
    world.settle()
    assert world.serving() == []
    world.command(ScaleModel(model="m", scaling=Scaling(min=2)))
    world.settle()
    assert len(world.serving()) == 2


def test_a_stopped_system_serves_nothing_and_remembers_everything(world: World) -> None:
    world.machine()
    world.define(model_spec("x", 2))
    world.define(model_spec("y"))
    world.command(StopModel(model="y"))
    world.settle()
    world.command(StopSystem(reason="power cut at nine"))
    world.settle()
    assert world.machines["cpu-1"].shards == {}
    assert {route(world.state, world.model(n)).stopped for n in ("x", "y")} == {"system_stopped"}
    assert world.refused(WakeModel(model="x")) == {"model": "the system is stopped: power cut at nine: start it"}
    world.define(model_spec("z"))
    world.settle()
    assert world.replicas("z") == []
    world.command(StartSystem())
    world.settle()
    assert len(world.serving("x")) == 2
    assert world.serving("y") == []
    assert world.serving("z") == ["cpu-1"]


# restarts


def test_a_restart_replaces_each_after_its_successor_serves(world: World) -> None:
    world.machine()
    world.define(model_spec(replicas=2))
    world.settle()
    old = {r.replica_id for r in world.replicas()}
    least: list[int] = []
    world.checks.append(lambda w: least.append(len(w.serving())))
    world.command(RestartModel(model="m", reason="leaks"))
    world.settle(40)
    assert min(least) == 2
    assert not old & {r.replica_id for r in world.replicas()}
    assert len(world.events(ReplicaPlaced)) == 4
    assert [e.in_place for e in world.events(ModelRestarted)] == [False]


def test_a_restart_without_room_waits_and_says_how_to_do_it_all_the_same(world: World) -> None:
    world.machine(cores=1)
    world.define(model_spec())
    world.settle()
    [old] = world.replicas()
    world.command(RestartModel(model="m"))
    world.settle(20)
    assert world.serving() == ["cpu-1"]
    assert [r.replica_id for r in world.replicas()] == [old.replica_id]
    assert "a restart in place stops each first" in world.events(ModelUnplaced)[0].explanation.summary
    world.command(RestartModel(model="m", in_place=True))
    world.settle(20)
    assert world.serving() == ["cpu-1"]
    assert [r.replica_id for r in world.replicas()] != [old.replica_id]


def test_a_restart_in_place_takes_one_at_a_time_on_the_same_cards(world: World) -> None:
    world.machine("g", gpus=2)
    world.define(model_spec("m", 2, gpu_profile()))
    world.settle()
    before = {d for r in world.replicas() for s in r.shards.values() for d in s.placement.devices}
    least: list[int] = []
    world.checks.append(lambda w: least.append(len(w.serving())))
    world.command(RestartModel(model="m", in_place=True))
    world.settle(40)
    assert min(least) == 1
    assert len(world.events(ReplicaPlaced)) == 4
    assert {d for r in world.replicas() for s in r.shards.values() for d in s.placement.devices} == before


def test_two_restarts_share_the_room_that_comes_back(world: World) -> None:
    """One has room beside it; the other waits for what the first gives back, and needs nobody stopped."""
    machine = world.machine(cores=3)
    for name in ("x", "y"):
        world.define(model_spec(name))
    world.settle()
    machine.busy = set()
    for name in ("x", "y"):
        world.define(model_spec(name, context_length=2048))
    world.settle(30)
    assert {name: len(world.serving(name)) for name in ("x", "y")} == {"x": 1, "y": 1}
    assert not [e for e in world.events(ReplicaDraining) if "needs its room" in e.reason]
    assert world.events(ModelUnplaced) == []


# numbers on profiles


def test_profiles_with_numbers_get_those_and_the_others_none(world: World) -> None:
    world.machine("g", gpus=4)
    profiles = (gpu_profile("fast", replicas=2), cpu_profile("slow", replicas=1), cpu_profile("never"))
    world.define(model_spec("m", 1, *profiles))
    world.settle()
    assert sorted(r.profile.name for r in world.replicas()) == ["fast", "fast", "slow"]
    world.define(model_spec("m", 1, gpu_profile("fast", replicas=1), cpu_profile("slow", replicas=2)))
    world.settle()
    assert sorted(r.profile.name for r in world.replicas()) == ["fast", "slow", "slow"]


def test_a_profile_that_does_not_fit_does_not_keep_the_others_waiting(world: World) -> None:
    world.machine("g", gpus=1)
    world.define(model_spec("m", 1, gpu_profile("fast", gpus=2, replicas=1), cpu_profile("slow", replicas=1)))
    world.settle()
    assert [r.profile.name for r in world.replicas()] == ["slow"]
    assert world.events(ModelUnplaced)[0].explanation.rejected == {"gpus": 1}


# on demand


def on_demand(name: str, **scaling: Any) -> ModelSpec:
    return scaled(model_spec(name, 0, gpu_profile()), min=0, on_demand=True, **scaling)


def test_an_on_demand_model_starts_when_it_is_asked_for(world: World) -> None:
    world.machine("g", gpus=1)
    world.define(on_demand("a"))
    world.settle()
    assert world.replicas("a") == []
    assert route(world.state, world.model("a")).on_demand
    assert model_view(world.state, world.model("a")).state == "asleep"
    assert isinstance(world.command(WakeModel(model="a")), ModelWoken)
    assert world.command(WakeModel(model="a")) is None
    world.settle()
    assert world.serving("a") == ["g"]
    world.wait(3600, step=5)
    assert world.serving("a") == ["g"], "it keeps its room as long as nobody needs it"


def test_waking_a_model_that_always_runs_changes_nothing(world: World) -> None:
    world.machine()
    world.define(model_spec())
    assert world.command(WakeModel(model="m")) is None


def test_the_longest_idle_model_makes_way(world: World) -> None:
    world.machine("g", gpus=2)
    for name in ("a", "b", "c"):
        world.define(on_demand(name))
    for name in ("a", "b"):
        world.command(WakeModel(model=name))
    world.settle()
    world.wait(400, step=5)
    world.use("a")
    world.wait(150, step=5)
    world.use("b")
    world.wait(150, step=5)
    world.command(WakeModel(model="c"))
    world.settle()
    [slept] = world.events(ModelSlept)
    assert (slept.model, slept.for_model) == ("a", "c")
    assert slept.idle_ms >= 300_000
    assert "it has been idle for" in slept.reason
    assert sorted(n for n in ("a", "b", "c") if world.serving(n)) == ["b", "c"]


def test_a_busy_or_fresh_or_just_used_model_keeps_its_card(world: World) -> None:
    world.machine("g", gpus=1)
    world.define(on_demand("a"))
    world.define(on_demand("b"))
    world.command(WakeModel(model="a"))
    world.settle()
    for _ in range(20):
        world.command(WakeModel(model="b"))
        world.wait(10)
    assert world.serving("a") == ["g"], "it was ready for less than its least lifetime"
    world.use("a", in_flight=1)
    for _ in range(60):
        world.command(WakeModel(model="b"))
        world.wait(10)
    assert world.serving("a") == ["g"], "a request is in flight"
    world.use("a", in_flight=0)
    world.wait(100, step=5)
    world.command(WakeModel(model="b"))
    world.wait(15)
    assert world.serving("a") == ["g"], "it was used less than evict_after_idle ago"
    world.wait(15)
    assert world.serving("b") == ["g"]


def test_two_models_that_want_one_card_do_not_thrash(world: World) -> None:
    world.machine("g", gpus=1)
    names = ("a", "b")
    for name in names:
        world.define(on_demand(name, evict_after_idle_s=0))
    start = world.now
    for i in range(720):  # an hour of requests for one and the other in turn
        name = names[i % 2]
        world.command(WakeModel(model=name))
        if world.serving(name):
            world.use(name)
        world.wait(5, step=5)
    switches = len(world.events(ModelSlept))
    assert 0 < switches <= (world.now - start) / timedelta(seconds=300)


def test_a_leader_that_has_not_heard_the_gateways_evicts_nobody(world: World) -> None:
    world.machine("g", gpus=1)
    for name in ("a", "b"):
        world.define(on_demand(name))
    world.command(WakeModel(model="a"))
    world.wait(600, step=5)
    world.deaf = True
    world.command(WakeModel(model="b"))
    world.wait(60, step=5)
    assert world.serving("a") == ["g"]
    world.deaf, world.listening_since = False, world.now
    world.wait(4)
    assert world.serving("a") == ["g"]
    world.wait(15)
    assert world.serving("b") == ["g"]


def test_a_wake_nobody_repeats_and_that_found_no_room_is_forgotten(world: World) -> None:
    world.machine("g", gpus=1)
    world.define(model_spec("always", 1, gpu_profile()))
    world.define(on_demand("a"))
    world.command(WakeModel(model="a"))
    world.wait(200, step=5)
    [slept] = world.events(ModelSlept)
    assert "nobody has asked for it for 180 s" in slept.reason
    assert not world.model("a").awake


def test_a_model_that_always_runs_takes_the_room_of_an_idle_one(world: World) -> None:
    world.machine("g", gpus=1)
    world.define(on_demand("a"))
    world.command(WakeModel(model="a"))
    world.settle()
    world.define(model_spec("always", 1, gpu_profile()))
    world.wait(400, step=5)
    assert world.serving("always") == ["g"]


# classes


def test_a_higher_class_takes_the_least_from_a_lower_one(world: World) -> None:
    world.machine("g1", gpus=2)
    world.machine("g2", gpus=2)
    world.define(model_spec("low", 2, gpu_profile(), priority_class="low"))
    world.define(model_spec("normal", 2, gpu_profile()))
    world.settle()
    world.define(model_spec("high", 1, gpu_profile(), priority_class="high"))
    world.settle(20)
    assert len(world.serving("high")) == 1
    assert len(world.serving("normal")) == 2
    assert len(world.serving("low")) == 1
    [drained] = world.events(ReplicaDraining)
    assert drained.reason == "makes way for high, which is of the class high"
    assert world.model("low").unplaced is not None
    world.wait(120, step=5)
    assert len(world.events(ReplicaDraining)) == 1


def test_nobody_is_stopped_where_that_gives_no_room(world: World) -> None:
    world.machine("g", gpus=2)
    world.define(model_spec("low", 2, gpu_profile(), priority_class="low"))
    world.settle()
    world.define(model_spec("high", 1, gpu_profile(gpus=4), priority_class="high"))
    world.settle(20)
    assert len(world.serving("low")) == 2
    assert world.model("high").unplaced is not None


def test_a_gang_of_a_higher_class_clears_both_machines(world: World) -> None:
    for name in ("g1", "g2"):
        world.machine(name, gpus=4, fabric="left")
    world.define(model_spec("low", 3, gpu_profile(gpus=2), priority_class="low"))
    world.settle()
    world.define(model_spec("big", 1, gpu_profile(gpus=4, nodes=2), priority_class="high"))
    world.settle(20)
    assert len(world.replicas("big", "ready")) == 1
    assert world.serving("low") == []


def test_room_that_comes_back_goes_to_the_higher_class_first(world: World) -> None:
    world.machine("g", gpus=1)
    world.define(model_spec("now", 1, gpu_profile(), priority_class="high"))
    world.settle()
    world.define(model_spec("aaa", 1, gpu_profile()))
    world.define(model_spec("zzz", 1, gpu_profile(), priority_class="high"))
    world.settle()
    world.command(StopModel(model="now"))
    world.settle()
    assert world.serving("zzz") == ["g"]
    assert world.serving("aaa") == []


def test_room_that_several_replicas_of_a_model_wait_for_is_kept_for_all_of_them(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, cores=2, labels={"kind": name})
    world.define(model_spec("now", 2, cpu_profile()))
    world.settle()
    for name in ("a", "b"):
        world.machines[name].busy = set(world.machines[name].shards)
    whole = [cpu_profile(f"on-{name}", cores=2, replicas=1, node_selector={"kind": name}) for name in ("a", "b")]
    world.define(model_spec("zzz", 2, *whole, priority_class="high"))
    world.command(StopModel(model="now"))
    world.settle()
    world.define(model_spec("aaa", 1, cpu_profile()))
    world.settle()
    world.command(ScaleModel(model="aaa", scaling=Scaling(min=2)))
    world.settle()
    assert world.replicas("aaa") == []
    for name in ("a", "b"):
        world.machines[name].busy.clear()
    world.settle()
    assert sorted(world.serving("zzz")) == ["a", "b"]


# use


def growing(**scaling: Any) -> ModelSpec:
    return scaled(model_spec("m", 1, cpu_profile(parallel=4)), min=1, max=4, target_waiting=2, **scaling)


def test_more_are_started_when_requests_wait_and_the_figures_stand_in_the_event(world: World) -> None:
    world.machine()
    world.define(growing())
    world.settle()
    world.use("m", in_flight=12)
    world.wait(10)
    assert world.events(ModelAutoscaled) == [], "not before the window is full"
    world.wait(40)
    first = world.events(ModelAutoscaled)[0]
    assert (first.before, first.replicas, first.waiting_per_replica, first.window_ms) == (1, 2, 8.0, 30_000)
    assert first.reason == "8.0 requests wait for each replica, 2 may"
    for _ in range(3):
        world.settle()
        world.use("m", in_flight=12)
        world.wait(40)
    assert len(world.serving()) == 4
    world.wait(120)
    assert max(e.replicas for e in world.events(ModelAutoscaled)) == 4


def test_a_slow_first_token_starts_another(world: World) -> None:
    world.machine()
    world.define(growing(target_ttft_ms=500))
    world.settle()
    world.use("m", in_flight=1, ttft_ms=900.0)
    world.wait(45)
    assert [e.replicas for e in world.events(ModelAutoscaled)] == [2]
    assert world.events(ModelAutoscaled)[0].reason == "the first token takes 900 ms, 500 ms are allowed"


def test_fewer_run_after_five_quiet_minutes_one_at_a_time(world: World) -> None:
    world.machine()
    world.define(growing())
    world.settle()
    world.use("m", in_flight=12)
    world.wait(90)
    assert len(world.replicas()) > 1
    most = len(world.replicas())
    world.use("m", in_flight=0)
    world.wait(200, step=5)
    assert len(world.replicas()) == most
    world.wait(1500, step=5)
    assert len(world.serving()) == 1
    down = [e for e in world.events(ModelAutoscaled) if e.replicas < e.before]
    assert all(e.before - e.replicas == 1 for e in down)
    assert all((b.at - a.at).total_seconds() >= 300 for a, b in itertools.pairwise(down))


def test_steady_use_between_the_thresholds_changes_nothing(world: World) -> None:
    world.machine()
    world.define(growing())
    world.settle()
    for _ in range(60):
        world.use("m", in_flight=5)
        world.wait(30, step=5)
    assert world.events(ModelAutoscaled) == []


def test_a_leader_that_takes_over_neither_flaps_nor_forgets(world: World) -> None:
    world.machine()
    world.define(growing())
    world.settle()
    world.use("m", in_flight=10)
    world.wait(60)
    settled = len(world.replicas())
    assert settled > 1
    world.wait(60)
    said = len(world.events(ModelAutoscaled))
    state = State()
    for position, event in world.log:
        state = evolve(state, event, position)
    world.state, world.reconciler, world.listening_since = state, Reconciler(), world.now
    world.uses = {}
    world.wait(250, step=5)
    assert len(world.events(ModelAutoscaled)) == said, "nothing is decided on windows that are not full"
    assert len(world.replicas()) == settled


def test_an_administrators_number_overrules_what_use_decided(world: World) -> None:
    world.machine()
    world.define(growing())
    world.settle()
    world.use("m", in_flight=12)
    world.wait(90)
    world.uses = {}
    assert world.command(ScaleModel(model="m", scaling=Scaling(min=1))) is not None
    world.settle()
    assert len(world.serving()) == 1


# trials


def tried(context_length: int = 2048, **canary: Any) -> ModelSpec:
    return model_spec("m", 2, context_length=context_length, canary=Canary(min_requests=50, **canary))


def served(world: World, requests: int, failed: int = 0, ttft_ms: float = 100.0, *, canary: bool) -> None:
    world.now += timedelta(seconds=1)
    for replica in world.replicas("m", "ready"):
        trial = world.model().trial
        if (trial is not None and replica.fingerprint == trial.fingerprint) == canary:
            from services.scheduler.core.inputs.traffic import ReplicaUse

            world.uses[replica.replica_id] = ReplicaUse(
                requests=requests, failed=failed, first_tokens=requests, first_tokens_ms=ttft_ms * requests
            )


def begin_trial(world: World, **canary: Any) -> None:
    world.machine()
    world.define(tried(4096))
    world.settle()
    world.define(tried(2048, **canary))
    world.settle()


def test_a_changed_definition_is_tried_beside_the_old_one(world: World) -> None:
    begin_trial(world, percent=20)
    shown = route(world.state, world.model())
    assert [e.canary for e in shown.endpoints].count(True) == 1
    assert len(shown.endpoints) == 3
    assert shown.canary_percent == 20
    assert shown.context_length == 4096
    world.wait(600, step=5)
    assert world.model().trial is not None, "without requests there is nothing to judge"
    assert "on trial" in model_view(world.state, world.model()).reason


def test_a_trial_that_does_well_is_promoted_and_replaces_the_rest(world: World) -> None:
    begin_trial(world)
    served(world, 500, 2, canary=False)
    served(world, 49, canary=True)
    world.settle()
    assert world.events(ModelPromoted) == []
    served(world, 60, canary=True)
    world.settle(40)
    [promoted] = world.events(ModelPromoted)
    assert (promoted.trial.requests, promoted.stable.requests) == (60, 1000)
    assert {r.fingerprint for r in world.replicas()} == {promoted.fingerprint}
    assert len(world.serving()) == 2
    assert world.model().spec.context_length == 2048


@pytest.mark.parametrize(
    ("canary", "says"),
    [
        ({"requests": 60, "failed": 6}, "10.0% of its requests failed, 0.4% of the others'"),
        ({"requests": 60, "ttft_ms": 200.0}, "its first token takes 200 ms, 100 ms elsewhere"),
    ],
)
def test_a_trial_that_does_worse_is_rolled_back(world: World, canary: dict[str, Any], says: str) -> None:
    begin_trial(world)
    before = {r.replica_id for r in world.replicas() if r.fingerprint == world.model().fingerprint}
    served(world, 500, 2, canary=False)
    served(world, **canary, canary=True)
    world.settle(20)
    [rolled_back] = world.events(ModelRolledBack)
    assert rolled_back.reason == says
    assert {r.replica_id for r in world.replicas()} == before
    assert world.model().spec.context_length == 4096


def test_a_definition_that_does_not_start_is_rolled_back_while_the_old_one_serves(world: World) -> None:
    machine = world.machine()
    world.define(tried(4096))
    world.settle()
    machine.fails["m"] = "unknown architecture"
    world.define(tried(2048))
    world.wait(60)
    [rolled_back] = world.events(ModelRolledBack)
    assert "it does not start: failed on cpu-1 while loading: unknown architecture" in rolled_back.reason
    assert len(world.events(ReplicaFailed)) == 3
    assert len(world.serving()) == 2
    assert world.model().parked is None


def test_a_trial_that_cannot_do_well_any_more_ends_before_its_last_request(world: World) -> None:
    begin_trial(world)
    served(world, 500, canary=False)
    served(world, 1, 1, canary=True)
    world.settle(20)
    assert world.model().trial is not None, "1 of 50 is 2 %, which is allowed"
    served(world, 2, 2, canary=True)
    world.settle(20)
    [rolled_back] = world.events(ModelRolledBack)
    assert rolled_back.reason == "100.0% of its requests failed, 0.0% of the others'"
    assert (rolled_back.trial.requests, rolled_back.trial.failed) == (2, 2)


def test_a_trial_is_ended_by_hand(world: World) -> None:
    begin_trial(world)
    assert isinstance(world.command(RollBackModel(model="m", reason="no")), ModelRolledBack)
    world.settle(20)
    assert len(world.serving()) == 2
    assert world.refused(PromoteModel(model="m")) == {
        "model": "no definition of m is on trial: there is nothing to promote"
    }
    world.define(tried(2048))
    world.settle()
    assert isinstance(world.command(PromoteModel(model="m")), ModelPromoted)
    world.settle(40)
    assert world.model().spec.context_length == 2048
    assert len(world.serving()) == 2


def test_the_same_definition_again_ends_its_trial_and_changes_nothing_else(world: World) -> None:
    begin_trial(world)
    world.define(tried(4096))
    world.settle(20)
    assert world.model().trial is None
    assert len(world.serving()) == 2
    assert len(world.events(ReplicaPlaced)) == 3


# nodes and racks


def test_a_lent_machine_is_emptied_and_used_again_when_it_is_ours(world: World) -> None:
    world.machine("a")
    world.machine("b")
    world.define(model_spec())
    world.settle()
    [where] = world.serving()
    world.command(LendNode(machine_id=where, to="slurm"))
    world.settle(20)
    other = ({"a", "b"} - {where}).pop()
    assert world.serving() == [other]
    assert world.events(ReplicaDraining)[0].reason == f"{where} is lent: slurm"
    world.command(ReclaimNode(machine_id=where))
    assert "lent to nobody" in world.refused(ReclaimNode(machine_id=where))["machine_id"]
    world.command(ScaleModel(model="m", scaling=Scaling(min=2)))
    world.settle()
    assert world.serving() == ["a", "b"]


def test_a_model_declared_stopped_runs_once_it_is_started_or_scaled(world: World) -> None:
    world.machine()
    world.define(model_spec("m", 1, stopped=True))
    world.settle()
    assert world.serving() == []
    assert route(world.state, world.model()).stopped_reason == "it is declared stopped"
    world.command(StartModel(model="m"))
    world.settle()
    assert len(world.serving()) == 1
    # Something else of it changes: that it was started is not taken back.
    world.define(model_spec("m", 1, stopped=True, description="better"))
    world.settle()
    assert len(world.serving()) == 1
    world.define(model_spec("m", 1))
    world.define(model_spec("m", 1, stopped=True))
    world.settle()
    assert world.serving() == []
    world.command(ScaleModel(model="m", scaling=Scaling(min=2)))
    world.settle()
    assert len(world.serving()) == 2
    world.define(model_spec("m", 2, stopped=True))
    world.define(model_spec("m", 2))
    world.settle()
    assert len(world.serving()) == 2


def test_a_card_that_falls_ill_is_left_for_another_and_comes_back(world: World) -> None:
    import msgspec

    machine = world.machine("g", gpus=2)
    world.define(model_spec("m", 1, gpu_profile()))
    world.settle()
    [replica] = world.replicas()
    [device] = replica.shards[f"{replica.replica_id}-0"].placement.devices
    sick = tuple(
        msgspec.structs.replace(gpu, problems=("XID 79: it has fallen off the bus",)) if gpu.uuid == device else gpu
        for gpu in machine.registered.gpus
    )
    world.append(msgspec.structs.replace(machine.registered, at=world.now, gpus=sick))
    least: list[int] = []
    world.checks.append(lambda w: least.append(len(w.serving())))
    world.settle(20)
    [other] = world.replicas()
    assert other.shards[f"{other.replica_id}-0"].placement.devices != (device,)
    assert min(least) == 1
    assert "GPU 0 of g is out of use: XID 79" in world.events(ReplicaDraining)[0].reason
    world.append(msgspec.structs.replace(machine.registered, at=world.now))
    world.command(ScaleModel(model="m", scaling=Scaling(min=2)))
    world.settle()
    assert len(world.serving()) == 2


def test_a_rack_is_filled_up_to_its_power(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, gpus=4, labels={"rack": "r1"})
    world.settle()
    assert world.refused(CapRack(rack="r9", watts=1)) == {"rack": "there is no rack 'r9'; there is r1"}
    world.command(CapRack(rack="r1", watts=2000))
    world.define(model_spec("m", 4, gpu_profile()))
    world.settle()
    assert len(world.serving()) == 2
    [unplaced] = world.events(ModelUnplaced)
    assert unplaced.explanation.candidates[0].rejected == ("needs 700 W, 600 W left of the 2000 W of rack r1",)
    assert unplaced.explanation.rejected == {"power": 2}
    world.command(CapRack(rack="r1"))
    world.settle()
    assert len(world.serving()) == 4


def test_a_rack_without_power_says_so_where_its_cards_are_taken_too(world: World) -> None:
    world.machine("a", gpus=2, labels={"rack": "r1"})
    world.define(model_spec("m", 2, gpu_profile()))
    world.settle()
    world.command(CapRack(rack="r1", watts=700))
    world.command(ScaleModel(model="m", scaling=Scaling(min=3)))
    world.settle()
    [unplaced] = world.events(ModelUnplaced)
    assert unplaced.explanation.rejected == {"gpus": 1, "power": 1}
    assert unplaced.explanation.candidates[0].rejected == (
        "needs 1 GPU of class h100-80g, 0 free of 2 (2 held by replicas)",
        "needs 700 W, 0 W left of the 700 W of rack r1 (what runs there may draw 1400 W)",
    )


def test_machines_that_compute_together_share_their_rack_s_power(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, gpus=2, fabric="left", labels={"rack": "r1"})
    world.command(CapRack(rack="r1", watts=2000))
    world.define(model_spec("big", 1, gpu_profile(gpus=2, nodes=2)))
    world.settle()
    assert world.events(ReplicaPlaced) == []
    rejected = {c.machine_id: c.rejected for c in world.events(ModelUnplaced)[0].explanation.candidates}
    assert "needs 2800 W, 2000 W left of the 2000 W of rack r1" in {*rejected["a"], *rejected["b"]}
    world.machine("c", gpus=2, fabric="left", labels={"rack": "r2"})
    world.settle()
    [placed] = world.events(ReplicaPlaced)
    assert "c" in {shard.machine_id for shard in placed.shards}


def test_stopping_is_in_the_diary(world: World) -> None:
    world.define(model_spec())
    world.command(StopModel(model="m", reason="x"))
    assert [e.reason for e in world.events(ModelStopped)] == ["x"]
