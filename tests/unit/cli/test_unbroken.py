from __future__ import annotations

import asyncio

import pytest

from cli.cluster import unbroken
from cli.failure import Failed
from libs.bus.memory import MemoryCluster


async def test_a_command_that_waits_for_a_log_that_is_no_more_ends_and_says_so() -> None:
    for broken in ("void", "failed"):
        bus = MemoryCluster().bus()
        ended = asyncio.Event()

        async def wait(ended: asyncio.Event = ended) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waiting = asyncio.ensure_future(unbroken(bus, wait()))
        await asyncio.sleep(0)
        (bus.begin_anew if broken == "void" else bus.fail)("EVENTS was made anew")
        with pytest.raises(Failed, match="EVENTS was made anew: run it again"):
            await asyncio.wait_for(waiting, 5)
        assert ended.is_set()


async def test_a_command_that_ends_ends_as_it_does() -> None:
    bus = MemoryCluster().bus()

    async def done() -> None:
        return None

    async def refused() -> None:
        raise Failed("there is no such node")

    await unbroken(bus, done())
    with pytest.raises(Failed, match="no such node"):
        await unbroken(bus, refused())
