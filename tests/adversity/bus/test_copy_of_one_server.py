"""Three nats-servers are put back from a copy of what one of them kept, taken while the other two went on working."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from libs.bus import Bus, BusError, NatsTransport, ensure, missing
from libs.bus.topology import STREAMS
from libs.testing import eventually
from libs.testing.nats_cluster import REPLICAS, NatsCluster

STORE = "jetstream"
AGREED_S = 60.0
"""Until a stream is on a server that came or came back."""


async def store(bus: Bus, count: int, of: str) -> int:
    """Store so many messages; the sequence of the last."""

    async def stored(number: int) -> int:
        return await bus.transport.store(f"llmgw.evt.test.{of}", b"{}", {"Nats-Msg-Id": f"{of}-{number}"})

    last = 0
    for number in range(count):
        last = await eventually(lambda number=number: stored(number), AGREED_S)  # type: ignore[misc]
    return last


async def current(bus: Bus, copies: int) -> bool:
    """Whether so many servers have all of every stream."""
    assert isinstance(bus.transport, NatsTransport)
    for stream in STREAMS:
        info = await bus.transport.api(f"STREAM.INFO.{stream.name}")
        replicas = info["cluster"].get("replicas") or ()
        if sum(replica.get("current", False) for replica in replicas) + 1 < copies:
            return False
    return True


@pytest.mark.timeout(300)
async def test_a_cluster_put_back_from_the_copy_of_one_server(tmp_path: Path) -> None:
    async with NatsCluster(tmp_path / "nats") as cluster:
        bus = await cluster.connect("operator")
        before = await store(bus, 100, "before")
        copied = cluster.members[0]
        await eventually(lambda: current(bus, REPLICAS), AGREED_S)

        copied.stop()
        meanwhile = await store(bus, 10, "meanwhile")
        shutil.copytree(copied.directory, tmp_path / "copy")
        await asyncio.to_thread(copied.start)
        assert await store(bus, 10, "later") > meanwhile > before
        await bus.close()

        for member in cluster.members:
            member.kill()
            shutil.rmtree(member.directory)
            shutil.copytree(tmp_path / "copy" / STORE, member.directory / STORE)
        await asyncio.gather(*(asyncio.to_thread(member.start) for member in cluster.members))
        bus = await cluster.connect("operator")
        await eventually(lambda: current(bus, REPLICAS), AGREED_S)

        assert (await bus.transport.extent("EVENTS")).last == before
        assert (await bus.transport.extent("EVENTS")).replicas == REPLICAS
        assert await missing(bus) == []
        assert await ensure(bus) == []
        assert await store(bus, 1, "after") == before + 1
        copied.kill()
        assert await eventually(lambda: others_have(cluster, before + 1), AGREED_S)
        await bus.close()


async def others_have(cluster: NatsCluster, sequence: int) -> bool:
    bus = await cluster.connect("operator", cluster.members[1:])
    try:
        return (await bus.transport.extent("EVENTS")).last == sequence
    except BusError:
        return False
    finally:
        await bus.close()
