"""What is answered to requests made from our own OpenAPI document, the right ones and the wrong ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from libs.bus import Bus
from libs.testing.engine import SimEngine
from services.gateway.core.protocols.operations import OPERATIONS

from .conftest import ADMIN, Client, World
from .described import shares, told, told_on_every_core


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    await asyncio.to_thread(sim_engine.behave, tok_s=0)
    await world.route(sim_engine, capabilities=(), context_length=32_000, max_output_tokens=64)
    return await world.gateway(await connect_as("gateway"))


async def document(gateway: Client) -> bytes:
    response = await gateway.send("GET", "/api/openapi.json", key=None)
    assert response.status == 200
    return response.body


async def test_every_route_is_in_it(gateway: Client) -> None:
    paths = msgspec.json.decode(await document(gateway))["paths"]
    assert gateway.service is not None
    table = gateway.service._router._table
    assert set(paths) == {*table, "/v1/models/{model}"}
    for path, methods in table.items():
        assert {method.lower() for method in methods} == set(paths[path])
    assert {kind.path for kind in OPERATIONS} <= set(paths)


async def test_no_answer_is_none_of_those_described(gateway: Client, caplog: pytest.LogCaptureFixture) -> None:
    asked = shares(await document(gateway), f"http://127.0.0.1:{gateway.port}", ADMIN, 110)
    assert await asyncio.to_thread(lambda: sum(map(told, asked))) >= 110
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_no_answer_of_a_hundred_thousand_is_none_of_those_described(
    gateway: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    asked = shares(await document(gateway), f"http://127.0.0.1:{gateway.port}", ADMIN, 100_000)
    assert await asyncio.to_thread(told_on_every_core, asked) >= 100_000
    assert not caplog.records
