"""Guessing keys: slowed down by address, and nobody with a valid key notices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from libs.bus import Bus, Misconfigured
from libs.testing.engine import SimEngine

from .conftest import Client, World

MODELS = "/v1/models"


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    await world.route(sim_engine)
    return await world.gateway(await connect_as("gateway"), unknown_keys_per_minute=3, trusted_proxies=("127.0.0.0/8",))


async def test_wrong_keys_are_slowed_down_by_address_and_valid_ones_never(gateway: Client) -> None:
    async def guess(address: str) -> int:
        headers = (f"x-forwarded-for: 6.6.6.6, {address}",)
        return (await gateway.send("GET", MODELS, key="sk-llmgw-guess", headers=headers)).status

    assert [await guess("9.9.9.9") for _ in range(5)] == [401, 401, 401, 429, 429]
    assert await guess("9.9.9.8") == 401
    for _ in range(5):
        valid = await gateway.send("GET", MODELS, headers=("x-forwarded-for: 9.9.9.9",))
        assert valid.status == 200
    refused = await gateway.send("POST", "/v1/messages", {}, key="sk-wrong", headers=("x-forwarded-for: 9.9.9.9",))
    assert (refused.status, refused.error["type"]) == (429, "rate_limit_error")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await gateway.send("GET", MODELS, key=None, headers=("x-forwarded-for: 9.9.9.9",))).status == 401


async def test_forwarded_addresses_count_from_trusted_proxies_only(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.route(sim_engine)
    gateway = await world.gateway(await connect_as("gateway"), unknown_keys_per_minute=3)
    statuses = [
        (await gateway.send("GET", MODELS, key="sk-guess", headers=(f"x-forwarded-for: 9.9.9.{n}",))).status
        for n in range(4)
    ]
    assert statuses == [401, 401, 401, 429]
    with pytest.raises(Misconfigured, match=r"proxy\.example"):
        await world.gateway(await connect_as("gateway"), instance="gw-2", trusted_proxies=("proxy.example",))
