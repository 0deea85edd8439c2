"""Every test here runs over the real server and over its twin in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from libs.bus import Bus, BusSettings, connect, ensure
from libs.bus.memory import MemoryCluster

Open = Callable[[str], Awaitable[Bus]]


@pytest.fixture(params=["nats", "memory"])
async def open_bus(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Opens a bus under an identity; all of one test share their streams."""
    opened: list[Bus] = []
    if request.param == "nats":
        server = request.getfixturevalue("nats_server")

        async def open_one(identity: str) -> Bus:
            bus = await connect(BusSettings(url=server.url, identity=identity))
            if not opened:
                await ensure(bus)
            opened.append(bus)
            return bus
    else:
        cluster = MemoryCluster()

        async def open_one(identity: str) -> Bus:
            opened.append(cluster.bus(identity))
            return opened[-1]

    yield open_one
    for bus in opened:
        await bus.close()
