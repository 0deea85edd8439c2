"""A gateway, the scheduler, and agents with engines on invented machines: what they are to do together."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from libs.bus import Bus
from libs.events.commands import StartModel, StartSystem, StopModel, StopSystem
from libs.events.model import Canary, ModelRolledBack, ModelSlept, ModelSpec, ModelWoken, Scaling
from libs.events.replica import ReplicaReady
from libs.events.views import Endpoint
from libs.testing import eventually
from tests.integration.scheduler.agent import scheduler
from tests.integration.scheduler.cluster import LENGTHS, WAIT_S, Cluster, running
from tests.unit.scheduler.harness import cpu_profile, gpu_profile, model_spec

from .conftest import KEY, Client, World

LIFETIME_S = 1
REASONS = {"model_stopped": "too dear", "system_stopped": "night"}


@pytest.fixture
async def cluster(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """What takes minutes in a machine room takes moments in it."""
    for name, value in LENGTHS.items():
        monkeypatch.setattr(name, value)
    async with running(world.server, world.bus, tmp_path) as cluster, scheduler(world.server, tmp_path):
        yield cluster


async def gateway_of(world: World, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    """It is ready when a model is there to be asked for."""
    return await world.gateway(await connect_as("gateway"), wake_wait_s=60.0)


def on_demand(name: str) -> ModelSpec:
    scaling = Scaling(min=0, on_demand=True, evict_after_idle_s=0, min_lifetime_s=LIFETIME_S)
    return msgspec.structs.replace(model_spec(name, 0, gpu_profile()), scaling=scaling)


async def test_two_models_take_turns_on_one_card_and_every_request_is_answered(
    world: World, cluster: Cluster, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await cluster.machine("gpu-1", gpus=1)
    await cluster.define(on_demand("a"), on_demand("b"))
    gateway = await gateway_of(world, connect_as)
    rounds = 2
    for _ in range(rounds):
        answers = await asyncio.gather(*(gateway.chat(model=model) for model in "abab"))
        assert [answer.status for answer in answers] == [200] * 4
        for answer in answers:
            record = await world.record(answer.request_id)
            assert (record.status, record.model, record.failed_replicas) == ("ok", record.model_asked, ())
    assert any(record.waited_ms for record in world.records.values())

    ready, slept = cluster.events(ReplicaReady), cluster.events(ModelSlept)
    assert len(slept) == len(ready) - 1, "each has the card for itself"
    assert len(slept) >= rounds
    for before, after in zip(ready, slept, strict=False):
        assert before.model == after.model
        assert (after.at - before.at).total_seconds() >= LIFETIME_S
    assert len(cluster.events(ModelWoken)) == len(ready), "whoever waits says so once"


async def test_what_an_administrator_stops_says_so_until_it_is_started(
    world: World, cluster: Cluster, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await cluster.machine("cpu-1")
    await cluster.define(*(model_spec(name, 1, cpu_profile(memory_mb=100)) for name in ("x", "y")))
    gateway = await gateway_of(world, connect_as)
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=KEY, max_retries=0) as sdk:

        async def said(model: str) -> str | None:
            """The code of the error; None for an answer."""
            messages: list[Any] = [{"role": "user", "content": "hi"}]
            try:
                await sdk.chat.completions.create(model=model, max_tokens=2, messages=messages)
            except openai.InternalServerError as refused:
                error = refused
            else:
                return None
            assert error.status_code == 503
            assert REASONS.get(str(error.code), "") in error.message
            return error.code

        async def says(model: str, code: str | None) -> None:
            async def so() -> bool:
                return await said(model) == code

            await eventually(so, WAIT_S, what=f"{model} says {code}")

        await says("x", None)
        await says("y", None)
        await cluster.command(StopModel(model="x", reason="too dear"))
        await says("x", "model_stopped")
        assert await said("y") is None
        await cluster.command(StopSystem(reason="night"))
        await says("x", "system_stopped")
        await says("y", "system_stopped")
        await cluster.command(StartSystem())
        await says("y", None)
        assert await said("x") == "model_stopped"
        await cluster.command(StartModel(model="x"))
        await says("x", None)


async def test_a_changed_definition_gets_its_percent_and_fails_at_nobodys_cost(
    world: World, cluster: Cluster, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await cluster.machine("cpu-1")
    trial = Canary(percent=20, min_requests=300, max_error_rate=0.005)
    spec = model_spec("m", 1, cpu_profile(memory_mb=100), canary=trial)
    await cluster.define(spec)
    await cluster.serves("m")
    gateway = await gateway_of(world, connect_as)
    await cluster.define(msgspec.structs.replace(spec, context_length=2048))
    await cluster.serves("m", 2)
    [tried] = [one for one in cluster.endpoints("m") if one.canary]
    await eventually(lambda: len(gateway.service._routes.targets) == 2)  # type: ignore[union-attr]
    answers = [await gateway.chat(model="m", max_tokens=1) for _ in range(200)]
    assert {answer.status for answer in answers} == {200}
    records = [await world.record(answer.request_id) for answer in answers]
    on_trial = sum(record.replica_id == tried.replica_id for record in records)
    assert 18 <= on_trial <= 62, "of 200 at 20 % within four standard deviations"

    await asyncio.to_thread(fails, tried)

    async def rolled_back() -> list[ModelRolledBack]:
        assert (await gateway.chat(model="m", max_tokens=1)).status == 200
        return cluster.events(ModelRolledBack)

    [end] = await eventually(rolled_back, WAIT_S)
    assert end.trial is not None
    assert end.trial.failed >= 2
    assert await cluster.serves("m", 1) != [tried]


def fails(endpoint: Endpoint) -> None:
    """From now on, at every request."""
    body = json.dumps({"behaviour": {"fail_status": 500}}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint.url}/sim/behaviour", body), timeout=5):
        return
