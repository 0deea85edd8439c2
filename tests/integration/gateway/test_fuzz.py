"""Mutated bodies over HTTP: an answer, or an error of the client's or the engine's; never the gateway's own failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from libs.bus import Bus
from libs.testing.engine import SimEngine
from tests.unit.gateway.mutations import bodies

from .conftest import Client, Response, World

AT_ONCE = 8


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    await asyncio.to_thread(sim_engine.behave, tok_s=0)
    await world.route(sim_engine, capabilities=(), context_length=32_000, max_output_tokens=64)
    return await world.gateway(await connect_as("gateway"))


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
    assert gateway.service is not None
    assert gateway.service._door.in_flight == 0


async def test_mutated_bodies(gateway: Client) -> None:
    await hammered(gateway, 3, 400)


@pytest.mark.slow
async def test_many_mutated_bodies(gateway: Client) -> None:
    await hammered(gateway, 4, 50_000)
