"""Whether a stream still has what was sent to it, as whoever may not read it as a whole can know."""

from __future__ import annotations

import asyncio

from .delivery import CAUSE
from .transport import Transport

LOOKS = 3
LOOK_AGAIN_S = 2.0
"""A replica that is behind the others has it by the last look."""


async def forgot(transport: Transport, stream: str, subject: str, sequence: int, cause: str) -> bool:
    """Whether a stream that was wiped, or put back from a copy, no longer has the last message that was sent to a
    subject nobody else sends to, and that it took under a sequence. Raises BusAway."""
    for look in range(LOOKS):
        if look:
            await asyncio.sleep(LOOK_AGAIN_S)
        there = await transport.last_here(stream, subject)
        # A later one is ours too: its acknowledgement was lost.
        if there is not None and (there.headers.get(CAUSE) == cause or there.sequence > sequence):
            return False
    return True
