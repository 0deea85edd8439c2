"""Tasks whose end nobody misses, and ending them for certain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from .transport import BusAway

log = logging.getLogger("llmgw.bus")

AGAIN_S = 6.0
"""Longer than anything a task of ours does to end in order."""
RETRY_S = 1.0


def supervise(work: Callable[[], Awaitable[None]], *, name: str, fail: Callable[[str], None]) -> asyncio.Task[None]:
    """Run ``work`` as a task of its own whose failure is seen.

    Where the bus is away it is begun again, for as long as it takes. Anything else it raises is a fault: it is
    logged, and ``fail`` is told, which ends the process, so that whoever keeps it starts it anew.
    """

    async def run() -> None:
        while True:
            try:
                return await work()
            except (BusAway, TimeoutError) as why:
                log.warning("%s waits for the bus: %s", name, why or type(why).__name__)
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                log.exception("%s failed", name)
                fail(f"{name} failed: {type(error).__name__}: {error}")
                return

    return asyncio.create_task(run(), name=name)


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task, again if need be, until it has ended; what it raised is dropped.

    Python 3.11's ``wait_for``, on which nats-py's requests wait, loses a cancellation that comes together with the
    result: a task cancelled once may go on for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN_S)
    await asyncio.gather(task, return_exceptions=True)
