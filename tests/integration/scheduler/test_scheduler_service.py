"""The scheduler on a real bus, with an agent that does what it is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from libs.bus import AskFailed, Bus, Delivery
from libs.events import Event, encode, plane
from libs.events.commands import DefineModel, RemoveModel, ScaleModel
from libs.events.library import LibraryVersion, MirrorServing, VersionAdded, WeightFile
from libs.events.model import ModelSpec, Scaling
from libs.events.questions import (
    Examined,
    ExamineScheduler,
    ExplainModel,
    ListModels,
    ListNodes,
    ModelExplained,
    ModelsAnswer,
    NodesAnswer,
    SchedulerState,
    StateAnswer,
)
from libs.events.shard import ShardFailed
from libs.events.views import Desired, ModelView, NodeView, Route
from libs.runtime.secrets import engine_key
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.scheduler.replay import fold
from tests.unit.scheduler.harness import START, cpu_profile, model_spec

from .agent import Agent, scheduler

Connect = Callable[[str], Awaitable[Bus]]


def spec(name: str = "m", replicas: int = 1, **fields: object) -> ModelSpec:
    return model_spec(name, replicas, cpu_profile(memory_mb=100), **fields)


async def serving(bus: Bus, model: str = "m") -> list[str]:
    route = await bus.view("routes", Route).get(model)
    return [e.replica_id for e in route.endpoints if not e.draining] if route is not None else []


async def test_from_definition_to_route_and_back(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET", "ab" * 32)
    async with scheduler(nats_server, tmp_path, fleet_secret="env:FLEET"):
        agent = await Agent(bus, "cpu.1", tmp_path).start()
        outcome = await bus.command(DefineModel(spec=spec(aliases=("default",))))
        assert (outcome.status, outcome.event) == ("done", "model.defined.v1")
        route = await eventually(lambda: _ready_route(bus))
        [endpoint] = route.endpoints
        assert route.aliases == ("default",)
        assert endpoint.machine_id == "cpu.1"
        assert agent.desired is not None
        [wanted] = agent.desired.shards
        assert wanted.sealed_key is not None
        key = agent.sealing.open(wanted.sealed_key).decode()
        assert key == engine_key(bytes.fromhex("ab" * 32), endpoint.replica_id, endpoint.generation)

        node = await eventually(lambda: bus.view("nodes", NodeView).get("cpu.1"))
        assert (node.state, node.cores_free) == ("ready", 7)
        model = await eventually(lambda: _model_in(bus, "ready"))
        assert (model.wanted, model.ready) == (1, 1)

        assert (await bus.command(DefineModel(spec=spec(aliases=("default",))))).status == "unchanged"
        refused = await bus.command(DefineModel(spec=spec("default")))
        assert refused.status == "refused"
        assert [p.path for p in refused.problems] == ["name"]

        generations = list(agent.generations)
        assert generations == sorted(set(generations)), "a value was written that had not changed"
        assert (await bus.command(RemoveModel(model="m"))).status == "done"
        await eventually(lambda: _gone(bus))
        await eventually(lambda: agent.shards == {})
        desired = await bus.view("desired", Desired).get("cpu.1")
        assert desired is not None
        assert desired.shards == ()
        await agent.stop()


async def _ready_route(bus: Bus) -> Route | None:
    route = await bus.view("routes", Route).get("m")
    return route if route is not None and route.endpoints else None


async def _model_in(bus: Bus, state: str) -> ModelView | None:
    model = await bus.view("models", ModelView).get("m")
    return model if model is not None and model.state == state else None


async def _gone(bus: Bus) -> bool:
    route, model = await bus.view("routes", Route).get("m"), await bus.view("models", ModelView).get("m")
    return route is None and model is None


async def test_questions(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    async with scheduler(nats_server, tmp_path) as service:
        agent = await Agent(bus, "cpu-1", tmp_path).start()
        await bus.command(DefineModel(spec=spec(aliases=("default",))))
        await eventually(lambda: serving(bus))
        await agent.fail((await _desired_shard(agent)), ShardFailed, phase="ready", reason="the engine was killed")
        await eventually(lambda: agent.starts == 2)
        await eventually(lambda: serving(bus))

        told = await bus.ask(ExplainModel(model="default"), ModelExplained)
        sentences = [happening.sentence for happening in told.recent]
        assert any("failed on cpu-1 while ready: the engine was killed" in s for s in sentences)
        [explanation] = told.placements.values()
        assert explanation.chosen == ("cpu-1",)
        assert explanation.took_ms is not None
        assert 0 < explanation.took_ms < 5000
        with pytest.raises(AskFailed, match="there is no model 'n'; there is m"):
            await bus.ask(ExplainModel(model="n"), ModelExplained)

        bad = DefineModel(spec=spec("m", 1, source="nowhere"))
        examined = await bus.ask(ExamineScheduler(command=encode(bad).decode()), Examined)
        assert [p.path for p in examined.problems] == ["source"]
        same = DefineModel(spec=spec(aliases=("default",)))
        assert (await bus.ask(ExamineScheduler(command=encode(same).decode()), Examined)).unchanged

        assert [n.machine_id for n in (await bus.ask(ListNodes(), NodesAnswer)).nodes] == ["cpu-1"]
        models = await bus.ask(ListModels(), ModelsAnswer)
        assert [s.name for s in models.specs] == [v.model for v in models.models] == ["m"]

        state = await bus.ask(SchedulerState(), StateAnswer)
        assert (state.leader, state.instance) == (True, service.authority.instance)
        events: list[tuple[int, Event]] = []

        async def keep(delivery: Delivery) -> None:
            assert isinstance(delivery.message, Event)
            events.append((delivery.sequence, delivery.message))

        follower = await bus.follow("EVENTS", [plane("evt")], keep)
        await follower.reached(state.position)
        folded = fold(e for e in events if e[0] <= state.position)
        assert (folded.position, folded.hash) == (state.position, state.hash)
        assert "model m is ready, 1 of 1 wanted are ready" in folded.summary
        await agent.stop()


async def _desired_shard(agent: Agent) -> str:
    return str(await eventually(lambda: next(iter(agent.shards), None)))


async def test_weights_and_mirrors_reach_the_node(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    async with scheduler(nats_server, tmp_path):
        agent = await Agent(bus, "cpu-1", tmp_path).start()
        await bus.command(DefineModel(spec=spec(source="library:w")))
        unplaced = await eventually(lambda: _model_in(bus, "unplaced"))
        assert "the library has no w" in unplaced.reason
        file = WeightFile(path="w.gguf", size_bytes=5, sha256="cd" * 32)
        version = LibraryVersion(name="w", version="v1", files=(file,), source="test")
        await bus.append(VersionAdded(at=START, name="w", version=version), cause="test:1")
        await bus.append(MirrorServing(at=START, mirror_id="mi", url="http://mirror:1"), cause="test:2")
        await eventually(lambda: agent.shards)
        [shard] = agent.shards.values()
        assert shard.weights is not None
        assert (shard.weights.version, shard.weights.mirrors) == ("v1", ("http://mirror:1",))
        await bus.append(MirrorServing(at=START, mirror_id="mi", url="http://mirror:2"), cause="test:3")
        await eventually(lambda: agent.desired and agent.desired.shards[0].weights.mirrors == ("http://mirror:2",))  # type: ignore[union-attr]
        assert agent.starts == 1
        await agent.stop()


async def test_a_new_leader_rewrites_no_view_that_is_right_and_mends_what_is_not(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    agent = await Agent(bus, "cpu-1", tmp_path).start()
    async with scheduler(nats_server, tmp_path):
        await bus.command(DefineModel(spec=spec()))
        await bus.command(DefineModel(spec=spec("n", 0)))
        await eventually(lambda: serving(bus))
        await eventually(lambda: _model_in(bus, "ready"))
    before = list(agent.generations)
    route = await bus.view("routes", Route).get("n")
    assert route is not None
    await bus.view("routes", Route).put("ghost", route)
    await bus.view("routes", Route).delete("n")
    async with scheduler(nats_server, tmp_path, "s-2"):
        await eventually(lambda: _is(bus, "ghost", None))
        await eventually(lambda: _is_there(bus, "n"))
        await bus.command(ScaleModel(model="m", scaling=Scaling(min=2)))
        await eventually(lambda: _serve(bus, 2))
    new = agent.generations[len(before) :]
    assert all(generation > before[-1] for generation in new)
    assert agent.starts == 2
    await agent.stop()


async def _is(bus: Bus, model: str, value: object) -> bool:
    return await bus.view("routes", Route).get(model) == value


async def _is_there(bus: Bus, model: str) -> bool:
    return await bus.view("routes", Route).get(model) is not None


async def _serve(bus: Bus, count: int) -> bool:
    return len(await serving(bus)) == count
