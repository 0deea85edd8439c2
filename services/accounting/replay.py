"""What was acknowledged as entered and is not in the ledger, read once more from the stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from libs.bus import Bus, Delivery
from libs.events import plane
from libs.tasks import end

log = logging.getLogger("llmgw.accounting")

AT_ONCE = 256
"""Messages in one transaction."""
STALLED_S = 30.0


async def replay(bus: Bus, after: int, until: int, enter: Callable[[list[Delivery]], Awaitable[int]]) -> int:
    """Have the messages of USAGE behind one sequence, up to another, entered; returns what ``enter`` says in all.

    Raises TimeoutError when nothing comes for half a minute, and what ``enter`` raises.
    """
    waiting: asyncio.Queue[Delivery | None] = asyncio.Queue(2 * AT_ONCE)

    async def keep(delivery: Delivery) -> None:
        await waiting.put(delivery if delivery.sequence <= until else None)

    async def ended() -> None:
        await follower.caught_up.wait()
        await waiting.put(None)

    log.warning("the ledger is counted anew from USAGE, from message %d to %d", after + 1, until)
    follower = await bus.follow("USAGE", [plane("use")], keep, start=after)
    ending = asyncio.create_task(ended())
    added, batch = 0, list[Delivery]()
    try:
        while True:
            async with asyncio.timeout(STALLED_S):
                delivery = await waiting.get()
            if delivery is not None:
                batch.append(delivery)
            if batch and (delivery is None or len(batch) == AT_ONCE):
                added += await enter(batch)
                batch = []
            if delivery is None:
                log.warning("the ledger is counted anew: %d requests were missing", added)
                return added
    finally:
        await end(ending)
        await follower.stop()
