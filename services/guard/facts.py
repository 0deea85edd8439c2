"""Verdicts as facts on the log: rules, counts and lengths, never text."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

from prometheus_client import Counter

from libs.bus import Bus, BusAway
from libs.events.policy import VerdictBatch, VerdictRecord

log = logging.getLogger("llmgw.guard")

MOST_A_BATCH = 1_000
MOST_WAITING = 20_000
"""Records kept while the bus takes none: some minutes of a busy gateway."""
WAIT_S = 0.5
"""How long a check stays unacknowledged for its fact's sake; judging goes on without it after that."""

DROPPED = Counter("llmgw_guard_facts_dropped_total", "Verdict facts given up because the bus took none for too long.")


class Facts:
    """Writes records in batches: one message is under way, and what comes meanwhile makes the next."""

    def __init__(self, bus: Bus, guard_id: str) -> None:
        self._bus = bus
        self._guard_id = guard_id
        self._waiting: list[VerdictRecord] = []
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def keep(self, records: Sequence[VerdictRecord]) -> None:
        """Returns when they are on the log, or after half a second when they will be later."""
        room = MOST_WAITING - len(self._waiting)
        if room < len(records):
            DROPPED.inc(len(records) - room)
        self._waiting += records[:room]
        written = self._written
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="verdict facts")
        try:
            async with asyncio.timeout(WAIT_S):
                await written.wait()
        except TimeoutError:
            log.warning("verdict facts wait: the bus has not taken them yet")

    async def _write(self) -> None:
        while self._waiting:
            batch, written = self._waiting[:MOST_A_BATCH], self._written
            if len(batch) == len(self._waiting):
                self._written = asyncio.Event()
            message = VerdictBatch(guard_id=self._guard_id, records=tuple(batch))
            try:
                await self._bus.append(message, cause=f"verdicts:{os.urandom(8).hex()}")
            except BusAway as why:
                log.warning("%d verdict facts wait: %s", len(self._waiting), why)
                return
            del self._waiting[: len(batch)]
            if written is not self._written:
                written.set()

    async def stop(self) -> None:
        """Write what is left, within the time an append tries."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await self._write()
