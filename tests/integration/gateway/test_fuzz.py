"""Mutated bodies over HTTP: an answer, or an error of the client's or the engine's; never the gateway's own failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from libs.bus import Bus
from libs.testing import eventually
from libs.testing.engine import SimEngine
from tests.unit.gateway.mutations import bodies
from tests.unit.gateway.test_fuzz import GROWTH_BYTES, resident

from .conftest import Client, GatewayProcess, Response, World

AT_ONCE = 8


@pytest.fixture
async def engine(world: World, sim_engine: SimEngine) -> SimEngine:
    await asyncio.to_thread(sim_engine.behave, tok_s=0)
    await world.route(sim_engine, capabilities=(), context_length=32_000, max_output_tokens=64)
    return sim_engine


async def hammered(gateway: Client, seed: int, count: int) -> None:
    left = bodies(seed, count)
    statuses: dict[int, int] = {}

    async def ask() -> None:
        for path, body in left:
            async with asyncio.timeout(20):
                response: Response = await gateway.send("POST", path, body)
            assert response.done, (path, body)
            assert response.status != 500, (path, body)
            statuses[response.status] = statuses.get(response.status, 0) + 1

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    assert sum(statuses.values()) == count
    assert statuses[200] > count / 20


async def test_mutated_bodies(
    engine: SimEngine, world: World, connect_as: Callable[[str], Awaitable[Bus]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    gateway = await world.gateway(await connect_as("gateway"))
    await hammered(gateway, 3, 400)
    assert gateway.service is not None
    assert gateway.service._router.in_flight == 0
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_many_mutated_bodies(
    engine: SimEngine, world: World, record_property: Callable[[str, object], None]
) -> None:
    process = GatewayProcess(world.directory / "gateway", world.server.url)
    world._stack.callback(process.stop)
    await asyncio.to_thread(process.start)
    await eventually(lambda: len(process.workers()) == 2, 30)
    workers, gateway = process.workers(), Client(process.port)
    await hammered(gateway, 4, 10_000)
    before = [resident(worker) for worker in workers]
    await hammered(gateway, 5, 40_000)
    grown = [resident(worker) - had for worker, had in zip(workers, before, strict=True)]
    record_property("growth of the two workers, MiB", [round(each / 2**20, 1) for each in grown])
    assert process.workers() == workers
    assert max(grown) < GROWTH_BYTES
    log = process.log_file.read_text()
    assert '"level": "info"' in log
    assert "Traceback" not in log
    assert '"level": "error"' not in log
