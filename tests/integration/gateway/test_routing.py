"""Which endpoint and which model answers: trials, weights, fallbacks, and what an administrator stopped."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import openai
import pytest

from libs.bus import Bus
from libs.events.usage import RequestRecord
from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import KEY, Client, Response, World, endpoint
from .test_on_demand import Waker

Connect = Callable[[str], Awaitable[Bus]]


@pytest.fixture
async def gateway(world: World, connect_as: Connect, sim_engine: SimEngine) -> Client:
    await world.route(sim_engine)
    return await world.gateway(await connect_as("gateway"))


async def served(gateway: Client, world: World, requests: int) -> list[RequestRecord]:
    """The records of so many requests, put one after the other; every one was answered."""
    responses = [await gateway.chat(max_tokens=1) for _ in range(requests)]
    assert {response.status for response in responses} == {200}
    return [await world.record(response.request_id) for response in responses]


async def test_a_trial_gets_its_share_and_no_client_pays_for_it(
    gateway: Client, world: World, sim_engine: SimEngine
) -> None:
    tried = world.engine("tried")
    await world.route(sim_engine, endpoint(tried, canary=True), canary_percent=20)
    await eventually(lambda: len(gateway.service._routes.targets) == 2)  # type: ignore[union-attr]
    counts = Counter(record.replica_id for record in await served(gateway, world, 150))
    assert abs(counts[f"r-{tried.port}"] - 30) <= 3

    await asyncio.to_thread(tried.behave, fail_status=500)
    records = await served(gateway, world, 20)
    assert {(record.status, record.replica_id) for record in records} == {("ok", f"r-{sim_engine.port}")}
    failed = [record for record in records if record.attempts == 2]
    assert failed
    assert {record.failed_replicas for record in failed} == {(f"r-{tried.port}",)}

    alone = world.engine("alone")
    await world.route(endpoint(sim_engine, draining=True), endpoint(alone, canary=True), canary_percent=20)
    await eventually(lambda: any(t.replica_id == f"r-{alone.port}" for t in gateway.service._routes.targets.values()))  # type: ignore[union-attr]
    records = await served(gateway, world, 10)
    assert {record.replica_id for record in records} == {f"r-{alone.port}"}, "nobody else is there"


async def test_weights_are_shares(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    light = world.engine("light")
    await world.route(endpoint(sim_engine, weight=3), light)
    await eventually(lambda: len(gateway.service._routes.targets) == 2)  # type: ignore[union-attr]
    counts = Counter(record.replica_id for record in await served(gateway, world, 150))
    assert 80 <= counts[f"r-{sim_engine.port}"] <= 142, "of 150 with 3 : 1 within six standard deviations"


async def test_another_model_answers_where_one_is_named(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    bad = world.engine("bad", model="spare")
    await world.route(fallbacks=("spare", "sim"), model="down", aliases=("best",))
    await world.route(bad, fallbacks=("down", "sim"), model="spare", max_output_tokens=16)
    await world.route(bad, fallbacks=("sim",), model="failing")
    await eventually(lambda: len(gateway.service._routes.models) == 4)  # type: ignore[union-attr]

    async def asks(model: str, **fields: object) -> tuple[Response, RequestRecord]:
        response = await gateway.chat(model=model, **fields)
        return response, await world.record(response.request_id)

    answer, record = await asks("failing")
    assert (answer.status, answer.headers["x-llmgw-model"]) == (200, "sim")
    assert (record.model_asked, record.model, record.attempts) == ("failing", "sim", 2)
    assert record.failed_replicas == (f"r-{bad.port}",)

    for stream in (False, True):
        answer, record = await asks("best", stream=stream)
        assert (answer.status, answer.headers["x-llmgw-model"]) == (200, "spare")
        assert (record.model_asked, record.model, record.replica_id) == ("best", "spare", f"r-{bad.port}")
    answer, record = await asks("down", max_tokens=17)
    assert (answer.headers["x-llmgw-model"], record.model) == ("sim", "sim"), "the first answers too briefly"
    answer, record = await asks("sim")
    assert "x-llmgw-model" not in answer.headers
    assert record.failed_replicas == ()

    await world.key("sk-narrow", key_id="k-narrow", models=("down", "sim"))
    await eventually(lambda: _known(gateway, "sk-narrow"))
    answer, record = await asks("down", key="sk-narrow")
    assert (answer.headers["x-llmgw-model"], record.model) == ("sim", "sim"), "the key may not use the first"
    await world.key("sk-one", key_id="k-one", models=("down",))
    await eventually(lambda: _known(gateway, "sk-one"))
    answer, record = await asks("down", key="sk-one")
    assert (answer.status, answer.error["code"]) == (503, "no_endpoint")
    assert "'down'" in answer.error["message"]
    assert (record.model, record.attempts) == ("down", 0)


async def _known(gateway: Client, key: str) -> bool:
    return (await gateway.send("GET", "/v1/models", key=key)).status == 200


async def test_models_that_name_each_other_and_have_nothing_end_in_an_error(gateway: Client, world: World) -> None:
    for model, other in (("a", "b"), ("b", "a")):
        await world.route(model=model, fallbacks=(other, model, "nowhere"))
    await eventually(lambda: len(gateway.service._routes.models) == 3)  # type: ignore[union-attr]
    answer = await gateway.chat(model="a")
    assert (answer.status, answer.error["code"]) == (503, "no_endpoint")
    assert "'a'" in answer.error["message"]


async def test_a_sleeping_model_is_woken_while_another_answers(
    gateway: Client, world: World, connect_as: Connect, sim_engine: SimEngine
) -> None:
    waker = await Waker(await connect_as("scheduler")).start()
    await world.route(model="asleep", on_demand=True, fallbacks=("sim",))
    await world.route(model="down", fallbacks=("stopped", "lazy"))
    await world.route(sim_engine, model="stopped", stopped="model_stopped")
    await world.route(model="lazy", on_demand=True)
    await eventually(lambda: len(gateway.service._routes.models) == 5)  # type: ignore[union-attr]
    answers = [await gateway.chat(model="asleep") for _ in range(3)]
    assert [(a.status, a.headers["x-llmgw-model"]) for a in answers] == [(200, "sim")] * 3
    await eventually(lambda: waker.told == ["asleep"])

    waiting = asyncio.create_task(gateway.chat(model="down"))
    await eventually(lambda: waker.told == ["asleep", "lazy"])
    await waker.hears({"lazy": 1})
    await world.route(world.engine("up again", model="down"), model="down", fallbacks=("lazy",))
    answer = await waiting
    assert (answer.status, "x-llmgw-model" in answer.headers) == (200, False), "the one asked for came first"


async def test_what_is_stopped_says_so(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    await world.route(sim_engine, model="dear", stopped="model_stopped", stopped_reason="too dear.", fallbacks=("sim",))
    await eventually(lambda: "dear" in gateway.service._routes.models)  # type: ignore[union-attr]
    retries = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=KEY, max_retries=5)
    async with retries as sdk:

        async def refused(model: str) -> openai.APIStatusError:
            with pytest.raises(openai.InternalServerError) as found:
                await sdk.chat.completions.create(
                    model=model, max_tokens=2, messages=[{"role": "user", "content": "hi"}]
                )
            assert found.value.status_code == 503
            return found.value

        error = await refused("dear")
        assert error.code == "model_stopped"
        assert "'dear' was stopped by an administrator: too dear. It answers again" in error.message
        assert (await gateway.chat()).status == 200

        await world.route(sim_engine, stopped="system_stopped", stopped_reason="night")
        await eventually(lambda: gateway.service._routes.stopped)  # type: ignore[union-attr]
        for model in ("sim", "dear", "unheard-of"):
            error = await refused(model)
            assert error.code == "system_stopped"
            assert "The system was stopped by an administrator: night." in error.message
    for path in ("/v1/messages", "/v1/embeddings"):
        answer = await gateway.send("POST", path, b"{")
        assert answer.status == 503
        assert "night" in json.dumps(answer.json)
    assert (await gateway.send("POST", "/v1/messages", b"{", key="sk-llmgw-wrong")).status == 401
    assert (await gateway.send("GET", "/v1/models")).status == 200
    await world.route(sim_engine)
    await eventually(lambda: gateway.service._routes.stopped is None)  # type: ignore[union-attr]
    assert (await gateway.chat()).status == 200


async def test_a_model_is_found_by_the_name_it_has_elsewhere(
    world: World, gateway: Client, sim_engine: SimEngine
) -> None:
    names = ("Qwen/Qwen3-8B", "llama3:8b")
    await world.route(sim_engine, aliases=names)

    async def known() -> bool:
        return (await gateway.chat(model=names[0])).status == 200

    await eventually(known)
    for name in names:
        answer = await gateway.chat(model=name)
        assert (answer.status, (await world.record(answer.request_id)).model) == (200, "sim")
        for path in (name, quote(name, safe="")):
            assert (await gateway.send("GET", f"/v1/models/{path}")).json["id"] == "sim"
