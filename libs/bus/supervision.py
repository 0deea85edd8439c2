"""Tasks that do not die alone: begun again while the bus is away, and any other fault of theirs ends the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from .transport import BusAway

log = logging.getLogger("llmgw.bus")

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
