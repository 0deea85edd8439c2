"""Engines that fail: before the first token nobody notices, after it the client is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from libs.bus import Bus
from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import Client, World


@pytest.fixture
async def pair(world: World, connect_as: Callable[[str], Awaitable[Bus]]) -> tuple[Client, SimEngine, SimEngine]:
    """A gateway and two engines serving the same model."""
    first, second = world.engine("first"), world.engine("second")
    await world.route(first, second)
    return await world.gateway(await connect_as("gateway")), first, second


BEFORE_THE_FIRST_TOKEN = [
    {"fail_status": 500},
    {"fail_status": 503},
    {"fail_status": 0, "error_after": 0},
    {"error_after": None, "cut_after": 0},
]


@pytest.mark.parametrize("stream", [True, False])
async def test_another_engine_answers_when_one_fails_before_the_first_token(
    pair: tuple[Client, SimEngine, SimEngine], world: World, stream: bool
) -> None:
    gateway, first, second = pair

    async def was_tried_again() -> bool:
        response = await gateway.chat(stream=stream)
        assert response.status == 200
        record = await world.record(response.request_id)
        assert (record.status, record.completion_tokens) == ("ok", 8)
        assert record.replica_id == f"r-{second.port}"
        return record.attempts == 2

    for behaviour in BEFORE_THE_FIRST_TOKEN:
        await asyncio.to_thread(first.behave, **behaviour)
        await eventually(was_tried_again)


async def test_a_killed_engine_costs_nobody_a_request_and_its_breaker_spares_it(
    pair: tuple[Client, SimEngine, SimEngine], world: World
) -> None:
    gateway, first, _ = pair
    assert [(await gateway.chat()).status for _ in range(4)] == [200] * 4
    first.kill()
    responses = [await gateway.chat(stream=True) for _ in range(20)]
    assert [response.status for response in responses] == [200] * 20
    records = [await world.record(response.request_id) for response in responses]
    assert sum(record.attempts - 1 for record in records) <= 5
    first.start()

    async def is_asked_again() -> bool:
        response = await gateway.chat()
        return (await world.record(response.request_id)).replica_id == f"r-{first.port}"

    await eventually(is_asked_again)


@pytest.mark.parametrize(("behaviour", "stream"), [({"fail_status": 400}, True), ({"fail_status": 422}, False)])
async def test_what_the_engine_refuses_is_the_clients_error_and_is_not_tried_again(
    pair: tuple[Client, SimEngine, SimEngine], world: World, behaviour: dict[str, int], stream: bool
) -> None:
    gateway, first, second = pair
    for engine in (first, second):
        await asyncio.to_thread(engine.behave, **behaviour)
    response = await gateway.chat(stream=stream)
    assert response.status == behaviour["fail_status"]
    assert response.error["message"]
    record = await world.record(response.request_id)
    assert (record.status, record.attempts, record.completion_tokens) == ("client_error", 1, 0)


async def test_when_all_fail_the_last_reason_is_told(pair: tuple[Client, SimEngine, SimEngine], world: World) -> None:
    gateway, *engines = pair
    for engine in engines:
        await asyncio.to_thread(engine.behave, fail_status=503)
    response = await gateway.chat(stream=True)
    assert (response.status, response.error["code"]) == (503, "upstream_overloaded")
    assert "retry-after" in response.headers
    for engine in engines:
        await asyncio.to_thread(engine.behave, fail_status=0, error_after=0)
    response = await gateway.chat(stream=True)
    assert (response.status, response.error["type"]) == (502, "server_error")
    record = await world.record(response.request_id)
    assert (record.status, record.attempts, record.prompt_tokens, record.completion_tokens) == (
        "upstream_error",
        2,
        0,
        0,
    )
    for engine in engines:
        engine.kill()
    for _ in range(4):
        response = await gateway.chat()
    assert response.status in (502, 503)


@pytest.mark.parametrize("behaviour", [{"error_after": 5}, {"cut_after": 5}, {"die_after": 5}])
async def test_an_engine_failing_in_the_middle_is_said_in_the_stream(
    gateway: Client, world: World, sim_engine: SimEngine, behaviour: dict[str, int]
) -> None:
    await asyncio.to_thread(sim_engine.behave, **behaviour)
    response = await gateway.chat(stream=True, max_tokens=50)
    assert response.status == 200
    *events, error, done = response.events
    assert done == "[DONE]"
    assert error["error"]["message"]
    assert error["error"]["type"]
    assert response.text == "".join(f"tok{n} " for n in range(5))
    assert len(events) == 6
    record = await world.record(response.request_id)
    assert (record.status, record.http_status, record.completion_tokens) == ("upstream_error", 200, 5)
    assert record.tokens_estimated


async def test_an_engine_that_hangs_is_given_up(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.route(sim_engine)
    gateway = await world.gateway(await connect_as("gateway"), deadline_s=0.4, stall_s=0.4)
    await asyncio.to_thread(sim_engine.behave, hang_after=0)
    silent = await gateway.chat(stream=True)
    assert (silent.status, silent.error["code"]) == (504, "deadline_exceeded")
    await asyncio.to_thread(sim_engine.behave, hang_after=3)
    stuck = await gateway.chat(stream=True)
    assert stuck.status == 200
    assert "error" in stuck.events[-2]
    record = await world.record(stuck.request_id)
    assert (record.status, record.completion_tokens) == ("upstream_error", 3)


async def test_the_deadline_is_the_clients_and_not_each_engines(
    world: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    """Given three engines of which none answers, then the client waits once, and is told so."""
    engines = [world.engine(name) for name in ("one", "two", "three")]
    await world.route(*engines)
    gateway = await world.gateway(await connect_as("gateway"), deadline_s=1.0)
    for engine in engines:
        await asyncio.to_thread(engine.behave, hang_after=0)
    loop = asyncio.get_running_loop()
    started = loop.time()
    response = await gateway.chat()
    waited = loop.time() - started
    assert (response.status, response.error["code"]) == (504, "deadline_exceeded")
    record = await world.record(response.request_id)
    assert record.attempts == 1
    assert 1.0 <= record.duration_ms / 1000 < 2.0, waited


async def test_a_frozen_engine_is_a_deadline_not_a_hang(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.route(sim_engine)
    gateway = await world.gateway(await connect_as("gateway"), deadline_s=0.4)
    sim_engine.freeze()
    response = await gateway.chat()
    assert (response.status, response.error["code"]) == (504, "deadline_exceeded")
    sim_engine.thaw()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_the_engine(
    gateway: Client, world: World, sim_engine: SimEngine, stream: bool
) -> None:
    await asyncio.to_thread(sim_engine.behave, tok_s=100, ttft_ms=0)
    task = asyncio.create_task(
        gateway.chat(stream=stream, max_tokens=2000, until=lambda response: response.body.count(b"tok") >= 10)
    )
    if stream:
        response = await task
        got = response.body.count(b'"content":"tok')
    else:
        await eventually(lambda: _running(sim_engine))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        got = 0
    await eventually(lambda: not _running(sim_engine), 1.0)
    record = await eventually(lambda: next((r for r in world.records.values() if r.status == "cancelled"), None))
    generated = sim_engine.requests()[record.request_id]["generated"]
    assert got <= record.completion_tokens <= generated
    assert record.replica_id == f"r-{sim_engine.port}"


def _running(engine: SimEngine) -> bool:
    return any(request["state"] == "running" for request in engine.requests().values())


async def test_routes_that_go_take_their_engines_with_them(
    pair: tuple[Client, SimEngine, SimEngine], world: World
) -> None:
    gateway, first, second = pair
    await world.route(second)
    await eventually(lambda: _targets(gateway) == {f"r-{second.port}"}, 1)
    records = [await world.record((await gateway.chat()).request_id) for _ in range(6)]
    assert {record.replica_id for record in records} == {f"r-{second.port}"}
    assert first.requests() == {}


def _targets(gateway: Client) -> set[str]:
    assert gateway.service is not None
    return {target.replica_id for target in gateway.service._routes.targets.values()}


async def test_load_goes_to_the_less_busy_one(pair: tuple[Client, SimEngine, SimEngine], world: World) -> None:
    gateway, first, _ = pair
    responses = await asyncio.gather(*(gateway.chat(stream=True, max_tokens=30) for _ in range(20)))
    records = [await world.record(response.request_id) for response in responses]
    share = sum(record.replica_id == f"r-{first.port}" for record in records)
    assert share == 10


async def test_engines_are_asked_with_the_key_made_for_them(
    world: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    from libs.runtime.secrets import engine_key

    secret = world.directory / "fleet.secret"
    secret.write_text("ab" * 32)
    engine = SimEngine(world.directory / "keyed")
    engine.key = engine_key(bytes.fromhex("ab" * 32), f"r-{engine.port}", 1)
    engine.start()
    world._stack.callback(engine.stop)
    await world.route(engine)
    gateway = await world.gateway(await connect_as("gateway"), fleet_secret=f"file:{secret}")
    assert (await gateway.chat()).status == 200
    secret.write_text("cd" * 32)
    wrong = await world.gateway(await connect_as("gateway"), instance="gw-2", fleet_secret=f"file:{secret}")
    response = await wrong.chat()
    assert (response.status, response.error["code"]) == (502, "upstream_error")


async def test_a_stream_that_outlasts_a_stop_is_told_so(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.route(sim_engine)
    gateway = await world.gateway(await connect_as("gateway"), stop_timeout_s=6)
    assert gateway.service is not None
    await asyncio.to_thread(sim_engine.behave, tok_s=20)
    asked = asyncio.create_task(gateway.chat("hello", stream=True, max_tokens=2000))
    service = gateway.service
    await eventually(lambda: service._own_in_flight())
    await gateway.stop()
    answer = await asyncio.wait_for(asked, 10)
    assert answer.status == 200
    assert answer.events[-2]["error"]["code"] == "gateway_stopping"
    assert answer.events[-1] == "[DONE]"
