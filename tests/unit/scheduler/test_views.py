"""The views: what gateways, nodes and people are shown."""

from __future__ import annotations

import msgspec

from cli.models import explained
from libs.events.commands import CapRack, DrainNode, RemoveModel, ScaleModel, UncordonNode
from libs.events.model import Scaling
from libs.events.questions import RackPower
from libs.events.replica import ReplicaStopped
from libs.events.system import RackCapped
from libs.events.views import NodeView
from services.scheduler.core.inputs.heartbeats import Heartbeat
from services.scheduler.core.views.desired import wanted_on
from services.scheduler.core.views.history import explain
from services.scheduler.core.views.model_views import model_view, with_progress
from services.scheduler.core.views.node_views import node_view, racks
from services.scheduler.core.views.routes import route

from .harness import World, cpu_profile, gpu_profile, model_spec


def settled(*, replicas: int = 1, **machine: int) -> World:
    world = World()
    world.machine(**machine)  # type: ignore[arg-type]
    world.define(model_spec("m", replicas, cpu_profile(parallel=7), aliases=("default",), max_output_tokens=50))
    world.settle()
    return world


def test_a_route_has_what_a_gateway_needs() -> None:
    world = settled()
    found = route(world.state, world.model())
    assert (found.model, found.aliases, found.max_output_tokens) == ("m", ("default",), 50)
    [endpoint] = found.endpoints
    assert (endpoint.url, endpoint.served_name, endpoint.parallel, endpoint.draining) == (
        "http://cpu-1:1", "m", 7, False,
    )  # fmt: skip


def test_a_model_without_endpoint_stays_listed_and_a_draining_one_is_flagged() -> None:
    world = settled()
    world.machines["cpu-1"].busy = set(world.machines["cpu-1"].shards)
    world.command(ScaleModel(model="m", scaling=Scaling(min=0)))
    world.settle()
    [endpoint] = route(world.state, world.model()).endpoints
    assert endpoint.draining
    [shard] = wanted_on(world.state, "cpu-1")
    assert shard.draining
    world.machines["cpu-1"].busy.clear()
    world.settle()
    assert route(world.state, world.model()).endpoints == ()
    assert wanted_on(world.state, "cpu-1") == ()


def test_desired_is_the_whole_of_what_a_machine_needs_to_know() -> None:
    world = World()
    world.machine("g", gpus=2)
    world.mirror("mirror-2")
    world.mirror("mirror-1")
    world.weights("w", "v1", size_bytes=77)
    profile = gpu_profile(memory_mb=500, args=("--echo",), env={"SIM_A": "1"}, startup_timeout_s=99)
    world.define(model_spec("m", 1, profile, source="library:w", context_length=1234))
    world.settle()
    [shard] = wanted_on(world.state, "g")
    assert shard.shard_id == f"{shard.replica_id}-0"
    assert (shard.devices, shard.memory_mb, shard.context_length) == (("g-gpu-0",), 500, 1234)
    assert (shard.args, shard.env, shard.startup_timeout_s) == (("--echo",), {"SIM_A": "1"}, 99)
    assert shard.weights is not None
    assert (shard.weights.name, shard.weights.version) == ("w", "v1")
    assert shard.weights.mirrors == ("http://mirror-1:9", "http://mirror-2:9")
    assert shard.weights.files[0].size_bytes == 77


def test_a_running_replica_keeps_the_definition_it_was_started_from() -> None:
    world = settled(cores=1)
    world.machines["cpu-1"].busy = set(world.machines["cpu-1"].shards)
    world.define(model_spec("m", 1, cpu_profile(args=("--agent",)), context_length=99))
    world.react()
    [shard] = wanted_on(world.state, "cpu-1")
    assert (shard.args, shard.context_length, shard.draining) == ((), 4096, True)


def test_a_node_shows_its_state_and_what_is_free() -> None:
    world = settled(replicas=2)
    found = node_view(world.state, world.state.facts.machines["cpu-1"])
    assert (found.state, found.cores_free, len(found.shards)) == ("ready", 6, 2)
    world.command(DrainNode(machine_id="cpu-1"))
    draining = node_view(world.state, world.state.facts.machines["cpu-1"])
    assert (draining.state, draining.reason) == ("draining", "2 shards have yet to stop")
    world.machines["cpu-1"].connected = False
    world.wait(12)
    lost = node_view(world.state, world.state.facts.machines["cpu-1"])
    assert lost.state == "lost"
    assert lost.reason.startswith("nothing is heard of it since 2026-11-29T12:00:")


def seen(world: World, machine_id: str) -> NodeView:
    return node_view(world.state, world.state.facts.machines[machine_id])


def test_a_drained_node_that_cannot_be_emptied_says_so_until_it_is() -> None:
    world = World()
    world.machine("a", cores=4)
    world.define(model_spec("m", 3))
    world.define(model_spec("n", 1))
    world.settle()
    world.command(DrainNode(machine_id="a", reason="disk"))
    world.settle()
    found = seen(world, "a")
    assert found.state == "draining"
    assert found.reason == "disk; 4 shards have nowhere to go: `llmgw explain` of m, n says why"
    assert len(world.serving("m")) == 3, "it goes on serving"
    world.machine("b", cores=1)
    world.settle(30)
    assert "3 shards have nowhere to go" in seen(world, "a").reason
    world.machine("c", cores=8)
    world.settle(60)
    assert (seen(world, "a").state, seen(world, "a").reason) == ("drained", "disk")
    assert len(world.serving("m")) == 3


def test_a_node_that_is_drained_by_force_stops_what_has_nowhere_to_go() -> None:
    world = World()
    world.machine("a", cores=2)
    world.machine("b", cores=1)
    world.define(model_spec("m", 2))
    world.settle()
    world.command(DrainNode(machine_id="a", force=True))
    world.settle(30)
    assert seen(world, "a").state == "drained"
    assert world.serving("m") == ["b"]
    assert any("it has nowhere to go" in e.reason for e in world.events(ReplicaStopped))
    assert model_view(world.state, world.model("m")).state == "degraded"
    assert world.command(DrainNode(machine_id="a", force=True)) is None
    assert world.command(DrainNode(machine_id="a")) is not None


def test_a_node_shows_which_cards_are_free_and_which_is_bad() -> None:
    world = World()
    machine = world.machine("g", gpus=4)
    world.define(model_spec("m", 1, gpu_profile()))
    world.settle()
    gpus = list(machine.registered.gpus)
    gpus[3] = msgspec.structs.replace(gpus[3], problems=("XID 79: fallen off the bus",))
    world.append(msgspec.structs.replace(machine.registered, gpus=tuple(gpus)))
    found = seen(world, "g")
    assert found.gpus_free == (1, 2)
    assert found.gpu_watts == 700
    assert found.problems == ("GPU 3: XID 79: fallen off the bus",)


def test_a_rack_says_how_far_it_is_above_its_cap() -> None:
    world = World()
    world.machine("g", gpus=4, labels={"rack": "a"})
    world.define(model_spec("m", 3, gpu_profile()))
    world.settle()
    event = world.command(CapRack(rack="a", watts=1400))
    assert isinstance(event, RackCapped)
    assert (event.watts, event.drawn_watts) == (1400, 2100)
    assert racks(world.state) == (RackPower(rack="a", watts=1400, drawn_watts=2100),)
    assert len(world.serving("m")) == 3


def test_a_replica_shows_how_far_its_start_is_until_it_is_ready() -> None:
    world = World()
    world.machine()
    world.define(model_spec("m", 1, cpu_profile()))
    world.react()
    [replica] = world.replicas("m")
    heartbeats = {
        "cpu-1": Heartbeat(silent_ms=0, starting={f"{replica.replica_id}-0": "loading", "r-other-0": "checking"})
    }
    [shown] = with_progress(model_view(world.state, world.model()), heartbeats).replicas
    assert shown.progress == "loading on cpu-1"
    world.settle()
    [shown] = with_progress(model_view(world.state, world.model()), heartbeats).replicas
    assert (shown.state, shown.progress) == ("ready", "")


def test_the_state_of_a_model_in_a_word() -> None:
    world = World()
    world.define(model_spec())
    world.react()
    assert model_view(world.state, world.model()).state == "unplaced"
    machine = world.machine(cores=1)
    world.react()
    assert model_view(world.state, world.model()).state == "starting"
    world.settle()
    assert model_view(world.state, world.model()).state == "ready"
    world.command(ScaleModel(model="m", scaling=Scaling(min=2)))
    world.settle()
    degraded = model_view(world.state, world.model())
    assert (degraded.state, degraded.ready, degraded.wanted) == ("degraded", 1, 2)
    assert "needs 1 CPU cores, 0 free of 1" in degraded.reason
    world.command(ScaleModel(model="m", scaling=Scaling(min=0)))
    world.settle()
    assert model_view(world.state, world.model()).state == "stopped"
    machine.fails["m"] = "no"
    world.command(ScaleModel(model="m", scaling=Scaling(min=1)))
    world.wait(8)
    waiting = model_view(world.state, world.model())
    assert waiting.state == "waiting"
    assert waiting.reason.startswith("the next try is at 2026-11-29T12:")
    world.wait(400)
    parked = model_view(world.state, world.model())
    assert parked.state == "parked"
    assert parked.reason.endswith("; `llmgw model restart m` tries again")
    world.command(RemoveModel(model="m"))
    assert world.state.facts.models == {}


def test_explain_tells_where_and_why_and_what_happened() -> None:
    world = settled()
    machine = world.machines["cpu-1"]
    machine.crash(next(iter(machine.shards)))
    world.settle()
    sentences = [happening.sentence for happening in explain(world.state, world.model()).recent]
    world.command(ScaleModel(model="m", scaling=Scaling(min=20)))
    world.settle()
    told = explain(world.state, world.model())
    assert set(told.placements) == {r.replica_id for r in world.replicas()}
    assert told.unplaced is not None
    assert told.unplaced.rejected.keys() <= {"cores", "memory"}
    first, second = (p.replica_id for p in world.events(type(world.log[3][1]))[:2])
    assert sentences[0].startswith("model m defined: 1 replica on sim, definition ")
    placed = f"replica {first} of m placed on cpu-1 with the profile cpu"
    assert sentences[1] == f"{placed}: the only machine there is (0 of 1 wanted were there)"
    assert sentences[2] == f"cpu-1 starts sim for m (shard {first}-0)"
    assert f"replica {first} of m serves at http://cpu-1:1" in sentences
    failure = f"replica {first} of m failed (number 1 in a row): failed on cpu-1 while ready: the engine was killed"
    assert f"{failure}; another is placed at once" in sentences
    assert f"replica {second} of m placed on cpu-1 with the profile cpu" in " ".join(sentences)
    assert [h.sequence for h in told.recent] == sorted(h.sequence for h in told.recent)
    assert len(told.recent) <= 40


def test_explain_says_at_a_replica_why_it_stays_on_a_machine_that_is_drained() -> None:
    world = World()
    world.machine("a", cores=4)
    world.define(model_spec("m", 2))
    world.settle()
    world.command(DrainNode(machine_id="a", reason="disk"))
    world.settle()

    told = explain(world.state, world.model())

    unplaced = world.model().unplaced
    assert unplaced is not None
    assert told.unplaced == unplaced
    for replica in told.model.replicas:
        assert replica.reason == f"a is being drained (disk); it stays because nothing else fits: {unplaced.summary}"
    text = "\n".join(explained(told))
    assert "m: ready, 2 of 2 replicas ready" in text
    assert "no place for what is to take over:\n  1 machine considered" in text

    world.command(UncordonNode(machine_id="a"))
    world.settle()
    told = explain(world.state, world.model())
    assert told.unplaced is None
    assert {replica.reason for replica in told.model.replicas} == {""}


def test_explain_says_at_a_replica_why_it_stays_with_an_older_definition() -> None:
    world = World()
    world.machine(memory_mb=4096)
    world.define(model_spec())
    world.settle()
    world.define(model_spec("m", 1, cpu_profile(memory_mb=100_000)))
    world.settle(steps=20)

    [replica] = explain(world.state, world.model()).model.replicas

    assert replica.reason.startswith("runs an older definition; it stays because nothing else fits: ")


def test_explain_works_out_anew_what_keeps_the_next_one_from_a_place() -> None:
    world = World()
    world.machine("a", memory_mb=1000)
    world.define(model_spec("m", 1, cpu_profile(memory_mb=5000)))
    world.settle()
    world.machine("b", memory_mb=2000)
    world.settle()
    told = explain(world.state, world.model())
    assert told.unplaced is not None
    assert told.unplaced.considered == 2
