from __future__ import annotations

import asyncio

from libs.runtime.clock import Clock, SystemClock
from libs.testing import eventually
from libs.testing.clock import ManualClock


async def test_manual_clock_wakes_who_is_due() -> None:
    clock = ManualClock()
    used: Clock = clock
    woken: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        await used.sleep(seconds)
        woken.append(name)

    tasks = [asyncio.create_task(wait("long", 10)), asyncio.create_task(wait("short", 1))]
    await eventually(lambda: len(clock._sleeping) == 2)
    start = clock.now()
    clock.advance(5)
    await eventually(lambda: woken == ["short"])
    clock.advance(5)
    await asyncio.gather(*tasks)
    assert woken == ["short", "long"]
    assert (clock.now() - start).total_seconds() == clock.monotonic() == 10


def test_system_clock_is_utc() -> None:
    assert SystemClock().now().utcoffset() is not None
