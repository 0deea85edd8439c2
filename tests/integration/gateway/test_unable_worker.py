"""Of two workers on one socket, the one that cannot write its spool leaves clients to the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from libs.bus import Bus
from libs.testing import eventually
from libs.testing.engine import SimEngine
from services.gateway.app import Gateway
from services.gateway.http.connection_balance import ConnectionBalance, shared_memory
from services.gateway.http.server import listen
from services.gateway.settings import GatewaySettings

from .conftest import Client, World


class Pair:
    """Two workers in this process; each says how many requests it was asked."""

    def __init__(self, workers: list[Gateway], port: int) -> None:
        self.workers = workers
        self.client = Client(port)

    async def statuses(self, count: int) -> list[int]:
        """So many at once, that both workers get some."""
        return [answer.status for answer in await asyncio.gather(*(self.client.chat() for _ in range(count)))]


@pytest.fixture
async def pair(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]], tmp_path: Path
) -> AsyncIterator[Pair]:
    await world.route(sim_engine)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    descriptor = shared_memory(2)
    workers = []
    for index in range(2):
        settings = GatewaySettings(instance=f"gw-{index}", data_dir=tmp_path / str(index), port=port)
        balance = ConnectionBalance(os.dup(descriptor), 2, index)
        workers.append(Gateway(settings, await connect_as("gateway"), listening.dup(), balance))
    for worker in workers:
        await worker.start()
        await eventually(lambda worker=worker: worker.not_ready() == [])
    yield Pair(workers, port)
    for worker in workers:
        await worker.stop()
    listening.close()
    os.close(descriptor)


async def test_a_worker_that_cannot_meter_takes_no_connections_until_it_can(pair: Pair, world: World) -> None:
    assert set(await pair.statuses(4)) == {200}
    spools = [worker._spool for worker in pair.workers]
    kept = [os.dup(spool._fd) for spool in spools]
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        os.dup2(full, spools[0]._fd)

        # It finds out at the first request it takes; from then on nobody meets it.
        async def found_out() -> bool:
            await pair.statuses(8)
            return spools[0].problem is not None

        await eventually(found_out)
        assert set(await pair.statuses(30)) == {200}

        os.dup2(full, spools[1]._fd)

        async def refused() -> bool:
            return set(await pair.statuses(8)) == {503}

        await eventually(refused)
        answers = [await pair.client.chat() for _ in range(6)]
        assert {answer.error["code"] for answer in answers} == {"metering_unavailable"}, "somebody says so"
        assert {answer.headers["connection"] for answer in answers} == {"close"}

        for spool, good in zip(spools, kept, strict=True):
            os.dup2(good, spool._fd)
        await eventually(lambda: all(spool.problem is None for spool in spools), 20)

        async def both_answer() -> bool:
            assert set(await pair.statuses(8)) == {200}
            gateways = {batch.gateway_id for batch in world.batches for record in batch.records}
            return len(gateways) == 2

        world.batches.clear()
        await eventually(both_answer, 20)
    finally:
        for one in (full, *kept):
            os.close(one)
