from __future__ import annotations

import asyncio

import pytest

from libs.bus import BusAway
from libs.bus.supervision import supervise
from libs.bus.transport import Full
from libs.tasks import end


async def test_a_task_that_loses_its_first_cancellation_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.tasks.AGAIN_S", 0.05)
    begun = asyncio.Event()
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while True:
            try:
                begun.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost == 2:
                    raise

    task = asyncio.create_task(stubborn())
    await begun.wait()
    await asyncio.wait_for(end(task), 5)
    assert task.cancelled()
    assert lost == 2


async def test_what_an_ended_task_raised_is_dropped() -> None:
    async def fails() -> None:
        raise RuntimeError("x")

    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await end(task)
    assert task.done()


async def test_supervised_work_begins_again_while_the_bus_is_away_and_fails_loudly_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("libs.bus.supervision.RETRY_S", 0.01)
    tries = 0
    failures: list[str] = []

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise Full("at its bound") if tries == 2 else BusAway("no quorum")
        raise KeyError("x")

    await asyncio.wait_for(supervise(work, name="the baker", fail=failures.append), 5)
    assert tries == 4
    assert failures == ["the baker failed: KeyError: 'x'"]
