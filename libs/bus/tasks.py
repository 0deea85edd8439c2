"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 6.0
"""Longer than anything a task of ours does to end in order."""


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task, again if need be, until it has ended; what it raised is dropped.

    Python 3.11's ``wait_for``, on which nats-py's requests wait, loses a cancellation that comes together with the
    result: a task cancelled once may go on for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=AGAIN_S)
    await asyncio.gather(task, return_exceptions=True)
