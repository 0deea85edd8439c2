"""Comment lines to clients whose stream is silent, so that nothing between them and here takes it for dead.

Silent means: nothing was written for an interval, before the first event or between two. Before the first one the
head of the answer is held back, so that an error of an engine can still be a real status; once the interval is over
it goes out with the first comment. Another engine may be asked even then, as long as no event reached the client;
a failure of the last one is the protocol's error event in the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .exchange import Exchange

LOOKED_AT_MOST_EVERY_S = 1.0


class KeepAlives:
    """The streams that are being answered. One look at all of them now and then costs a token nothing."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._exchanges: set[Exchange] = set()

    @contextmanager
    def during(self, exchange: Exchange) -> Iterator[None]:
        """While the block runs, ``exchange`` is never silent for much longer than the interval."""
        self._exchanges.add(exchange)
        try:
            yield
        finally:
            self._exchanges.discard(exchange)

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(min(LOOKED_AT_MOST_EVERY_S, self._every_s / 4))
            now = time.perf_counter()
            for exchange in list(self._exchanges):
                if now - exchange.wrote_at >= self._every_s:
                    await exchange.comment()
