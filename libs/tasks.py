"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 6.0
"""Longer than anything a task of ours does to end in order."""


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, again if need be, until they have ended; what they raised is dropped.

    Python 3.11's ``wait_for``, on which nats-py's requests wait, loses a cancellation that comes together with the
    result: a task cancelled once may go on for ever.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
