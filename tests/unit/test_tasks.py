from __future__ import annotations

import asyncio

import pytest

from libs.bus.tasks import end


async def test_a_task_that_loses_its_first_cancellation_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.bus.tasks.AGAIN_S", 0.05)
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
