"""Hosts that do not hear of each other spend together no more than there is, and one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from libs.bus import Bus
from libs.events.views import PriceView
from libs.testing import eventually
from libs.testing.engine import SimEngine
from libs.testing.traffic import Traffic
from tests.integration.gateway.conftest import KEY, World, world

from .test_one_host import EACH, PRICE, TOKENS, cost, only, standing_still, under

__all__ = ["world"]


async def test_a_bus_that_stands_still_leaves_each_host_its_share(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await asyncio.to_thread(sim_engine.behave, tok_s=0)
    await world.route(sim_engine)
    await world.bus.view("prices", PriceView).put("sim", PriceView(price=PRICE, version=1))
    amount = 40 * EACH
    await world.key(KEY, budgets=under(amount), rpm=10_000)
    hosts = [await world.gateway(await connect_as("gateway"), name) for name in ("gw-1", "gw-2")]
    gossip = [host.service._gossip for host in hosts if host.service is not None]
    await eventually(lambda: all(one._other_hosts.hosts == 2 for one in gossip))
    async with (
        Traffic(f"http://127.0.0.1:{hosts[0].port}/v1", KEY, "sim", rate=20, max_tokens=TOKENS) as first,
        Traffic(f"http://127.0.0.1:{hosts[1].port}/v1", KEY, "sim", rate=20, max_tokens=TOKENS) as second,
    ):
        await eventually(lambda: all(sum(a.status == 200 for a in load.answers) > 3 for load in (first, second)))
        async with standing_still(world.server):
            await eventually(lambda: only(402, first.answers) and only(402, second.answers), 30)
        before = len(first.answers)
        await eventually(lambda: len(first.answers) > before + 60, 30)
        answers = await first.stop() + await second.stop()
    spent = await cost(world, answers)
    assert amount // 2 < spent <= amount + EACH + EACH // 10
