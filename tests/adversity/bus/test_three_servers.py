"""Three nats-servers keep the promises of one: nothing is lost, nothing comes twice, nobody ends, and all goes on
within a bound, whatever happens to the servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.bus import Bus
from libs.events.views import LibraryEntry
from libs.testing import eventually
from libs.testing.nats_cluster import Member, NatsCluster

from .load import Load

MOVED_S = 25.0
"""From the loss of one server of three until everything gets through: a leader is elected in some seconds, and who was
connected to the lost one finds another. On a busy machine, several times what it takes."""
BACK_S = 40.0
"""From the quorum's return."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    async with NatsCluster(tmp_path / "nats") as cluster:
        yield cluster


@pytest.fixture
async def load(cluster: NatsCluster) -> AsyncIterator[Load]:
    async with Load(cluster) as load:
        await load.flows(MOVED_S)
        yield load


async def leading(load: Load, cluster: NatsCluster) -> Member:
    return await eventually(lambda: cluster.leader(load.buses[-1]), MOVED_S)


async def followers(load: Load, cluster: NatsCluster) -> list[Member]:
    leader = await leading(load, cluster)
    return [member for member in cluster.members if member is not leader]


async def freeze_followers(load: Load, cluster: NatsCluster, seconds: float) -> None:
    """Longer than a store waits for its answer, shorter than an election: what was asked for lands afterwards."""
    frozen = await followers(load, cluster)
    for member in frozen:
        member.freeze()
    await asyncio.sleep(seconds)
    for member in frozen:
        member.thaw()


@pytest.mark.timeout(300)
async def test_followers_that_stand_still_and_a_leader_that_is_killed(load: Load, cluster: NatsCluster) -> None:
    await freeze_followers(load, cluster, 3.0)
    await load.flows(BACK_S)
    leader = await leading(load, cluster)
    await asyncio.to_thread(leader.kill)
    await load.flows(MOVED_S)
    await load.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_followers_stand_still_again_and_again(load: Load, cluster: NatsCluster) -> None:
    for seconds in (1.0, 2.5, 4.0, 7.0, 12.0):
        await freeze_followers(load, cluster, seconds)
        await load.flows(BACK_S)
    await load.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_leaders_are_killed_one_after_another(load: Load, cluster: NatsCluster) -> None:
    for _ in range(3):
        leader = await leading(load, cluster)
        await asyncio.to_thread(leader.kill)
        await load.flows(MOVED_S)
        await asyncio.to_thread(leader.start)
        await load.flows(BACK_S)
    await load.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_server_that_stands_still_is_left(load: Load, cluster: NatsCluster) -> None:
    for member in cluster.members:
        member.freeze()
        await load.flows(60)
        member.thaw()
        await load.flows(BACK_S)
    await load.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_server_cut_off_from_the_others_is_left(load: Load, cluster: NatsCluster) -> None:
    for member in cluster.members:
        await cluster.cut_off(member)
        await load.flows(60)
        await cluster.rejoin(member)
        await load.flows(BACK_S)
    await load.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [5, 60])
async def test_the_quorum_is_lost(load: Load, cluster: NatsCluster, seconds: int) -> None:
    lost = await followers(load, cluster)
    for member in lost:
        await asyncio.to_thread(member.kill)
    await asyncio.sleep(seconds)
    await asyncio.gather(*(asyncio.to_thread(member.start) for member in lost))
    await load.flows(60)
    await load.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_all_three_are_restarted_one_after_another(load: Load, cluster: NatsCluster) -> None:
    for member in cluster.members:
        await asyncio.to_thread(member.restart)
        await load.flows(BACK_S)
    await load.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_who_only_listens_leaves_a_server_that_is_cut_off_too(cluster: NatsCluster) -> None:
    """Its server goes on sending heartbeats, and nothing else: an agent there would run what nobody wants any more."""
    for member in cluster.members:
        listener = await cluster.connect("node-x", first=member)
        seen: dict[str, LibraryEntry | None] = {}

        async def keep(key: str, value: LibraryEntry | None, seen: dict[str, LibraryEntry | None] = seen) -> None:
            seen[key] = value

        watch = await listener.view("library", LibraryEntry).watch(keep)
        await eventually(watch.caught_up.is_set, MOVED_S)
        await cluster.cut_off(member)
        others = [one for one in cluster.members if one is not member]
        writer = await cluster.connect("mirror", others)
        entry = LibraryEntry(name="n", versions={}, latest=member.server_name)
        await eventually(lambda: put(writer, entry), 60)  # noqa: B023 - called before the loop goes on
        await eventually(lambda: seen.get("n") == entry, 60)  # noqa: B023
        await cluster.rejoin(member)
        await watch.stop()
        await listener.close()
        await writer.close()


async def put(writer: Bus, entry: LibraryEntry) -> bool:
    await writer.view("library", LibraryEntry).put("n", entry)
    return True
