"""The six services keep their promises over three nats-servers, whatever happens to these: no request fails, every
token is in the ledger once, commands are carried out once, and nobody ends."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.bus import BusAway, BusError, Unanswered
from libs.events.commands import CordonNode, UncordonNode
from libs.testing import eventually
from libs.testing.ledger import inconsistencies, rows
from libs.testing.nats_cluster import Member
from libs.testing.traffic import Traffic, ask

from .three_servers import OverThree

MODEL = "sim-chat"
BACK_S = 90.0
"""Until commands and the ledger are through again. What it takes is some ten seconds; several nodes and six services
on a busy machine take longer."""
LOST_TAGS = {"replica.lost.v1", "replica.failed.v1", "shard.failed.v1"}


@pytest.fixture
async def over(tmp_path: Path) -> AsyncIterator[OverThree]:
    async with OverThree(tmp_path) as over:
        yield over


class Commands:
    """Cordons and uncordons a node, one command after another, each asked for until its outcome is known."""

    def __init__(self, over: OverThree) -> None:
        self._over = over
        self.done: list[str] = []
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        for number in itertools.count():
            if self._ending.is_set():
                return
            command = (UncordonNode if number % 2 else CordonNode)(machine_id="sim-2")
            command_id = f"c-three-{number}"
            while True:
                try:
                    outcome = await self._over.bus.command(command, command_id=command_id, timeout_s=10)
                    break
                except (BusAway, Unanswered):
                    continue
            assert outcome.status == "done", outcome
            self.done.append(command_id)
            await asyncio.sleep(0.1)

    async def flow(self) -> None:
        count = len(self.done)
        await eventually(lambda: self._task.done() or len(self.done) > count + 2, BACK_S, what="commands")
        if self._task.done():
            self._task.result()

    async def stop(self) -> list[str]:
        self._ending.set()
        await asyncio.wait_for(self._task, BACK_S)
        return self.done


async def leader(over: OverThree) -> Member:
    async def found() -> Member | None:
        try:
            return await over.nats.leader(over.bus)
        except BusError:
            return None

    member = await eventually(found, BACK_S)
    assert member is not None
    return member


async def others(over: OverThree) -> list[Member]:
    leading = await leader(over)
    return [member for member in over.nats.members if member is not leading]


async def leader_killed(over: OverThree) -> None:
    member = await leader(over)
    await asyncio.to_thread(member.kill)
    await asyncio.sleep(8)
    await asyncio.to_thread(member.start)


async def followers_frozen(over: OverThree) -> None:
    frozen = await others(over)
    for member in frozen:
        member.freeze()
    await asyncio.sleep(4)
    for member in frozen:
        member.thaw()


async def one_cut_off(over: OverThree) -> None:
    member = await leader(over)
    await over.nats.cut_off(member)
    await asyncio.sleep(20)
    await over.nats.rejoin(member)


async def quorum_lost(over: OverThree, seconds: float = 5) -> None:
    lost = await others(over)
    for member in lost:
        await asyncio.to_thread(member.kill)
    await asyncio.sleep(seconds)
    await asyncio.gather(*(asyncio.to_thread(member.start) for member in lost))


async def quorum_lost_for_a_minute(over: OverThree) -> None:
    await quorum_lost(over, 60)


async def rolling_restart(over: OverThree) -> None:
    for member in over.nats.members:
        await asyncio.to_thread(member.restart)
        await asyncio.sleep(5)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_services_keep_their_promises_over_three_servers(over: OverThree) -> None:
    async def served() -> bool:
        answer = await ask(over.layout.base_url, over.keys.client.key, MODEL, "ready?", 5)
        return answer.ok

    await eventually(served, BACK_S, every_s=0.5, what="the model serves")
    commands = Commands(over)
    async with Traffic(over.layout.base_url, over.keys.client.key, MODEL, rate=10) as running:
        for happens in (
            leader_killed,
            followers_frozen,
            one_cut_off,
            quorum_lost,
            rolling_restart,
            quorum_lost_for_a_minute,
        ):
            await happens(over)
            await commands.flow()
            assert running.failures == [], happens.__name__
            assert over.restarts == {}, f"{happens.__name__}: {over.said}"
    done = await commands.stop()

    # Every answer is in the ledger once, with the tokens its client was told.
    told = {answer.request_id: (answer.prompt_tokens, answer.completion_tokens) for answer in running.answers}
    billed: dict[str, tuple[int | None, int | None]] = {}

    async def complete() -> bool:
        for row in await rows(over.layout.postgres.dsn()):
            billed[row.request_id] = (row.prompt_tokens, row.completion_tokens)
        return told.keys() <= billed.keys()

    await eventually(complete, BACK_S, every_s=0.5, what="the ledger is complete")
    assert {request_id: billed[request_id] for request_id in told} == told
    assert await inconsistencies(over.layout.postgres.dsn()) == []

    # Every command was carried out once, in order, and no replica was taken for lost. A node whose agent was on the
    # server that was cut off is not heard until it has left that one: it may be said to be silent, and then is back.
    carried: list[str] = []
    tags: Counter[str] = Counter()

    async def fold(delivery: object) -> None:
        tags[delivery.tag] += 1  # type: ignore[attr-defined]
        if delivery.cause.startswith("c-three-"):  # type: ignore[attr-defined]
            carried.append(delivery.cause)  # type: ignore[attr-defined]

    reading = await over.bus.follow("EVENTS", ["llmgw.evt.>"], fold)
    await asyncio.wait_for(reading.caught_up.wait(), 30)
    assert carried == done
    assert not LOST_TAGS & tags.keys()
    assert tags["node.lost.v1"] == tags["node.returned.v1"]
