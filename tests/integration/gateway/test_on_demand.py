"""A model on demand: who asks for it waits until it runs, and not for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

import pytest

from libs.bus import Bus, Delivery
from libs.bus.delivery import MESSAGE_ID, REPLY
from libs.events.commands import Outcome, WakeModel
from libs.events.usage import GatewayRates
from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import CHAT, Client, Response, World, endpoint

Connect = Callable[[str], Awaitable[Bus]]
COMMENT = b": keep-alive\n\n"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}


class Waker:
    """In the scheduler's place: is told who is asked for. Hears too how many wait."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.told: list[str] = []
        self.waiting: list[Mapping[str, int]] = []

    async def start(self) -> Waker:
        await self._bus.work("cmd-scheduler", self._on_commands)
        await self._bus.listen(GatewayRates, self._on_rates)
        return self

    async def _on_commands(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            assert isinstance(delivery.message, WakeModel)
            self.told.append(delivery.message.model)
            outcome = Outcome(command_id=delivery.headers[MESSAGE_ID], status="done")
            await self._bus.reply(delivery.headers[REPLY], outcome)

    async def _on_rates(self, rates: GatewayRates) -> None:
        self.waiting.append(rates.waiting)

    async def hears(self, waiting: Mapping[str, int]) -> None:
        await eventually(lambda: self.waiting and self.waiting[-1] == waiting, what=f"{waiting} waiting")


@pytest.fixture
async def waker(world: World, connect_as: Connect) -> Waker:
    return await Waker(await connect_as("scheduler")).start()


@pytest.fixture
async def gateway(world: World, waker: Waker, connect_as: Connect) -> Client:
    """In front of a model that sleeps: it can be woken, so the gateway is ready."""
    await world.route(on_demand=True)
    return await world.gateway(await connect_as("gateway"), stream_keep_alive_s=0.1)


async def test_all_who_wait_are_answered_and_the_scheduler_is_told_once(
    gateway: Client, world: World, waker: Waker, sim_engine: SimEngine
) -> None:
    kept_alive: set[str] = set()

    def reads(response: Response) -> bool:
        if COMMENT in response.body:
            kept_alive.add(response.request_id)
        return False

    body = HELLO | {"model": "sim", "stream": True}
    whole = [asyncio.create_task(gateway.chat(str(n))) for n in range(3)]
    streamed, spoken = (
        asyncio.create_task(gateway.send("POST", path, body, until=reads)) for path in (CHAT, "/v1/messages")
    )
    await waker.hears({"sim": 5})
    assert waker.told == ["sim"]
    await eventually(lambda: len(kept_alive) == 2)
    await world.route(sim_engine, on_demand=True)
    answers = [*await asyncio.gather(*whole), await streamed, await spoken]
    assert [answer.status for answer in answers] == [200] * 5
    assert answers[0].json["choices"][0]["message"]["content"].startswith("tok0 ")
    assert all(answer.body.startswith(COMMENT) for answer in answers[3:])
    assert answers[3].body.endswith(b"data: [DONE]\n\n")
    assert b"event: message_stop" in answers[4].body
    for answer in answers:
        record = await world.record(answer.request_id)
        assert (record.status, record.attempts, record.replica_id) == ("ok", 1, f"r-{sim_engine.port}")
        assert 100 <= record.waited_ms <= record.duration_ms
    await waker.hears({})
    assert (await world.record((await gateway.chat()).request_id)).waited_ms == 0
    assert waker.told == ["sim"]


async def test_one_that_is_drained_is_woken_again(
    gateway: Client, world: World, waker: Waker, sim_engine: SimEngine
) -> None:
    await world.route(sim_engine, on_demand=True)
    assert (await eventually(gateway.chat)).status == 200
    told = len(waker.told)
    [target] = gateway.service._routes.targets.values()  # type: ignore[union-attr]
    await world.route(endpoint(sim_engine, draining=True), on_demand=True)
    await eventually(lambda: target.draining)
    waiting = asyncio.create_task(gateway.chat())
    await eventually(lambda: len(waker.told) == told + 1, 15)
    await world.route(sim_engine, on_demand=True)
    assert (await waiting).status == 200


async def test_who_waits_too_long_is_told_what_to_do(world: World, waker: Waker, connect_as: Connect) -> None:
    await world.route(on_demand=True)
    gateway = await world.gateway(await connect_as("gateway"), stream_keep_alive_s=0.1, wake_wait_s=0.4)
    body = HELLO | {"model": "sim"}
    answer, spoken, streamed = await asyncio.gather(
        gateway.send("POST", CHAT, body),
        gateway.send("POST", "/v1/messages", body),
        gateway.send("POST", CHAT, body | {"stream": True}),
    )
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "model_not_ready", "60")
    assert "'sim' runs on demand and was not ready within 0.4 s" in answer.error["message"]
    assert (spoken.status, spoken.json["error"]["type"]) == (503, "overloaded_error")
    assert "runs on demand" in spoken.json["error"]["message"]
    assert streamed.status == 200, "comments went out"
    *_, error, done = [event for event in streamed.body.split(b"\n\n") if event.startswith(b"data: ")]
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "model_not_ready"
    assert done == b"data: [DONE]"
    record = await world.record(answer.request_id)
    assert (record.status, record.http_status, record.attempts) == ("upstream_error", 503, 0)
    assert record.waited_ms >= 300


async def test_a_client_that_leaves_waits_no_more_and_only_so_many_wait(
    world: World, waker: Waker, connect_as: Connect
) -> None:
    await world.route(on_demand=True)
    gateway = await world.gateway(await connect_as("gateway"), stream_keep_alive_s=0.1, wake_waiting=1)

    def left(response: Response) -> bool:
        return leaving.is_set() and COMMENT in response.body

    leaving = asyncio.Event()
    waiting = asyncio.create_task(gateway.chat(stream=True, until=left))
    await waker.hears({"sim": 1})
    refused = await gateway.chat()
    assert (refused.status, refused.error["code"]) == (503, "too_many_waiting")
    assert int(refused.headers["retry-after"]) > 0
    leaving.set()
    record = await world.record((await waiting).request_id)
    assert (record.status, record.attempts) == ("cancelled", 0)
    await waker.hears({})


async def test_who_waits_hears_that_it_was_stopped(gateway: Client, world: World, waker: Waker) -> None:
    waiting = asyncio.create_task(gateway.chat())
    await waker.hears({"sim": 1})
    await world.route(on_demand=True, stopped="model_stopped", stopped_reason="too dear")
    answer = await waiting
    assert (answer.status, answer.error["code"]) == (503, "model_stopped")
    assert "too dear" in answer.error["message"]


async def test_a_gateway_that_stops_keeps_nobody_waiting(gateway: Client, waker: Waker) -> None:
    waiting = asyncio.create_task(gateway.chat())
    await waker.hears({"sim": 1})
    assert gateway.service is not None
    gateway.service._dispatcher.end()
    answer = await waiting
    assert (answer.status, answer.error["code"]) == (503, "gateway_stopping")
    await gateway.stop()


async def test_without_a_bus_who_waits_waits_on(
    gateway: Client, world: World, waker: Waker, sim_engine: SimEngine
) -> None:
    world.server.kill()
    waiting = asyncio.create_task(gateway.chat())
    await eventually(lambda: gateway.service._wake_queue.counts == {"sim": 1})  # type: ignore[union-attr]
    world.server.start()
    await eventually(lambda: waker.told == ["sim"], 20)
    await eventually(lambda: _routed(world, sim_engine))
    assert (await waiting).status == 200


async def _routed(world: World, engine: SimEngine) -> bool:
    await world.route(engine, on_demand=True)
    return True
