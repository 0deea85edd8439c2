"""Verdicts as facts on the log: rules, counts and lengths, never text."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Counter

from libs.bus import Bus
from libs.events.policy import VerdictBatch, VerdictRecord
from libs.tasks import end

log = logging.getLogger("llmgw.guard")

MAX_PER_BATCH = 1_000
MAX_WAITING = 20_000
"""Records kept while the bus takes none: some minutes of a busy gateway."""
WAIT_S = 0.5
"""How long a check stays unacknowledged for its fact's sake; judging goes on without it after that."""

STOP_S = 5.0

DROPPED = Counter("llmgw_guard_facts_dropped_total", "Verdict facts given up because the bus took none for too long.")


@dataclass(frozen=True, slots=True)
class _Batch:
    """Records on their way. However often it is sent, it is the same message."""

    cause: str
    message: VerdictBatch
    written: asyncio.Event
    """Set when it is on the log and nothing that came before the next batch is missing."""
    last: bool


class VerdictPublisher:
    """Writes records in batches: one message is under way, and what comes meanwhile makes the next."""

    def __init__(self, bus: Bus, guard_id: str) -> None:
        self._bus = bus
        self._guard_id = guard_id
        self._waiting: list[VerdictRecord] = []
        self._batch: _Batch | None = None
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def keep(self, records: Sequence[VerdictRecord]) -> None:
        """Write records. Returns when they are on the log, or after WAIT_S, and then they are written later. What is
        more than MAX_WAITING is dropped."""
        free = MAX_WAITING - len(self._waiting)
        if free < len(records):
            DROPPED.inc(len(records) - free)
        self._waiting += records[:free]
        written = self._written
        self._empty.clear()
        self._filled.set()
        if self._task is None:
            self._task = self._bus.background("verdict facts", self._write)
        try:
            async with asyncio.timeout(WAIT_S):
                await written.wait()
        except TimeoutError:
            log.warning("verdict facts wait: the bus has not taken them yet")

    async def _write(self) -> None:
        while True:
            while self._waiting:
                batch = self._batch = self._batch or self._next()
                await self._bus.append(batch.message, cause=batch.cause)
                self._batch = None
                del self._waiting[: len(batch.message.records)]
                if batch.last:
                    batch.written.set()
            self._empty.set()
            self._filled.clear()
            await self._filled.wait()

    def _next(self) -> _Batch:
        records = tuple(self._waiting[:MAX_PER_BATCH])
        last = len(records) == len(self._waiting)
        batch = _Batch(
            cause=f"verdicts:{os.urandom(8).hex()}",
            message=VerdictBatch(guard_id=self._guard_id, records=records),
            written=self._written,
            last=last,
        )
        if last:
            self._written = asyncio.Event()
        return batch

    async def stop(self) -> None:
        """Write what is left, as far as the bus takes it now."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._empty.wait()
        await end(self._task)
        if self._waiting:
            log.error("%d verdict facts are lost: the bus took none before the end", len(self._waiting))
            DROPPED.inc(len(self._waiting))
