"""The workers of one host keep budgets and limits together, whatever becomes of the bus and of each of them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from libs.events.budget import LevelBudget
from libs.events.tenancy import Price
from libs.events.views import PriceView
from libs.testing import eventually
from libs.testing.engine import SimEngine
from libs.testing.nats import NatsServer
from libs.testing.traffic import Answer, Traffic
from tests.integration.gateway.conftest import KEY, GatewayProcess, World, world

__all__ = ["world"]

PRICE = Price(model="sim", prompt_micros=1_000, completion_micros=1_000_000)
TOKENS = 10
EACH = 1_000 * TOKENS
"""Micro-units an answer costs; a prompt costs a few more."""


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Two workers, not started: what they are to know of the key at once is said before."""
    await world.route(sim_engine)
    await world.bus.view("prices", PriceView).put("sim", PriceView(price=PRICE, version=1))
    process = GatewayProcess(tmp_path / "gateway", world.server.url)
    yield process
    for pid in process.workers():
        os.kill(pid, signal.SIGCONT)
    await asyncio.to_thread(process.stop)


async def started(gateway: GatewayProcess) -> None:
    await asyncio.to_thread(gateway.start)
    await eventually(lambda: len(gateway.workers()) == 2)


@asynccontextmanager
async def standing_still(server: NatsServer) -> AsyncIterator[None]:
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def away(server: NatsServer) -> AsyncIterator[None]:
    await asyncio.to_thread(server.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


def under(amount_micros: int) -> tuple[LevelBudget, ...]:
    return (LevelBudget(account="k-client", amount_micros=amount_micros, period="total"),)


def traffic(gateway: GatewayProcess, rate: float) -> Traffic:
    return Traffic(f"http://127.0.0.1:{gateway.port}/v1", KEY, "sim", rate=rate, max_tokens=TOKENS)


def only(status: int, answers: list[Answer]) -> bool:
    return len(answers) >= 20 and all(answer.status == status for answer in answers[-20:])


async def cost(world: World, answers: list[Answer]) -> int:
    """Of all requests, once all are in USAGE."""
    wanted = {answer.request_id for answer in answers if answer.request_id}
    await eventually(lambda: wanted <= world.records.keys(), 30)
    return sum(
        PRICE.cost_micros(record.prompt_tokens, record.cached_tokens, record.completion_tokens)
        for record in world.records.values()
        if record.status in ("ok", "cancelled", "cut")
    )


@pytest.mark.parametrize("without_bus", [standing_still, away])
async def test_a_budget_is_not_overspent_without_the_bus(
    world: World, gateway: GatewayProcess, sim_engine: SimEngine, without_bus: object
) -> None:
    await asyncio.to_thread(sim_engine.behave, tok_s=100)
    amount = 40 * EACH
    await world.key(KEY, budgets=under(amount))
    await started(gateway)
    async with traffic(gateway, 60) as load:
        await eventually(lambda: sum(answer.status == 200 for answer in load.answers) > 3)
        async with without_bus(world.server):  # type: ignore[operator]
            await eventually(lambda: only(402, load.answers), 30)
        answers = await load.stop()
    assert {answer.status for answer in answers} == {200, 402}
    assert amount - 2 * EACH < await cost(world, answers) <= amount


@pytest.mark.slow
async def test_a_budget_of_five_requests_at_twelve_a_second_for_long_without_the_bus(
    world: World, gateway: GatewayProcess
) -> None:
    amount = 5 * EACH
    await world.key(KEY, budgets=under(amount))
    await started(gateway)
    async with traffic(gateway, 12) as load:
        async with standing_still(world.server):
            await asyncio.sleep(25)
        answers = await load.stop()
    assert await cost(world, answers) <= amount


async def test_a_worker_that_stands_still_and_wakes_up_spends_nothing_twice(
    world: World, gateway: GatewayProcess, sim_engine: SimEngine
) -> None:
    await asyncio.to_thread(sim_engine.behave, tok_s=20)
    amount = 60 * EACH
    await world.key(KEY, budgets=under(amount))
    await started(gateway)
    async with traffic(gateway, 60) as load:
        await eventually(lambda: len(load.answers) > 3)
        still = gateway.workers()[0]
        os.kill(still, signal.SIGSTOP)
        await eventually(lambda: only(402, load.answers), 30)
        os.kill(still, signal.SIGCONT)
        at = len(load.answers)
        await eventually(lambda: len(load.answers) > at + 60 and only(402, load.answers), 30)
        answers = await load.stop()
    assert amount - 4 * EACH < await cost(world, answers) <= amount


async def test_limits_outlive_the_workers_and_the_whole_gateway(
    world: World, gateway: GatewayProcess, sim_engine: SimEngine
) -> None:
    await asyncio.to_thread(sim_engine.behave, tok_s=0)
    await world.key(KEY, rpm=60)
    await started(gateway)
    began = time.monotonic()
    async with traffic(gateway, 100) as load:
        await eventually(lambda: only(429, load.answers), 30)
        for pid in (victims := gateway.workers()):
            os.kill(pid, signal.SIGKILL)
        await eventually(lambda: len(gateway.workers()) == 2 and not set(victims) & set(gateway.workers()), 30)
        at = len(load.answers)
        await eventually(lambda: len(load.answers) > at + 60 and only(429, load.answers), 30)
        assert gateway.process is not None
        everybody = [psutil.Process(gateway.process.pid), *psutil.Process(gateway.process.pid).children(recursive=True)]
        for process in everybody:
            process.kill()
        await asyncio.to_thread(psutil.wait_procs, everybody)
        await asyncio.to_thread(gateway.start)
        at = len(load.answers)
        await eventually(lambda: len(load.answers) > at + 60 and only(429, load.answers), 30)
        answers = await load.stop()
    assert time.monotonic() - began < 55, "or the minute is over"
    assert sum(answer.status == 200 for answer in answers) == 60
