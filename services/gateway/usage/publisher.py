"""From the spool to the stream USAGE, in order, each stretch once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from libs.bus import Bus, BusAway, BusError
from libs.events import subject_of
from libs.events.usage import UsageBatch

from .spool import READ_BYTES, Spool

log = logging.getLogger("llmgw.gateway")

EVERY_S = 0.25
LOOK_EVERY_S = 10.0
AGAIN_S = 0.5


class Publisher:
    """Publishes what a spool holds every quarter of a second, and at once what is more than one message takes: each
    is a write of the stream and a transaction of the ledger.

    The message id is made from the gateway and the position, and a stretch is promised before it is sent: sent
    again after a crash it is the same message and is stored once. Where the stream has forgotten what it took last,
    because it was wiped or put back from a copy, all that is still here is published once more: the ledger knows by
    the request what it has.
    """

    def __init__(self, bus: Bus, spool: Spool, gateway_id: str, begin_anew: Callable[[], None]) -> None:
        """``begin_anew`` is told when what was said of sequences in USAGE holds no more."""
        self._bus = bus
        self._spool = spool
        self._gateway_id = gateway_id
        self._begin_anew = begin_anew
        self._subject = subject_of(UsageBatch(gateway_id=gateway_id, offset=0, records=()))
        self._looked = 0.0
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to publish."""
        self._task = self._bus.background("the publisher of usage", self._run)

    async def stop(self) -> None:
        """Publish what is there, as far as the bus takes it, and end."""
        self._stopping.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await self._task

    async def _run(self) -> None:
        complained = False
        while True:
            stopping = self._stopping.is_set()
            try:
                self._spool.probe()
                if not stopping:
                    await self._look()
                batch = self._spool.batch()
            except OSError as error:
                if not complained:
                    log.error("usage waits in the spool, which cannot be used: %s", error)
                complained = True
                if stopping:
                    return
                await self._pause(AGAIN_S)
                continue
            if batch is not None:
                epoch = self._spool.marks.epoch
                message = UsageBatch(gateway_id=self._gateway_id, offset=batch.end, records=batch.records)
                try:
                    sequence = await self._bus.append(message, cause=f"{self._gateway_id}:{batch.end}")
                except BusError as error:
                    if not complained:
                        log.warning("usage waits in the spool: %s", error)
                    complained = True
                    if stopping:
                        return
                    await self._pause(AGAIN_S)
                    continue
                # The stream may have become another while this was on its way: the spool begins anew then.
                if self._spool.marks.epoch == epoch:
                    with contextlib.suppress(OSError):  # sent again after a crash it would be the same message
                        self._spool.published(batch.end, sequence)
                complained = False
            elif stopping:
                return
            if batch is None or self._spool.backlog_bytes < READ_BYTES:
                await self._pause(EVERY_S)

    async def _look(self) -> None:
        """Now and then: whether the stream has what it took last."""
        marks = self._spool.marks
        if not marks.end or time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        try:
            end, sequence = marks.end, marks.sequence(marks.end)
            if not await self._bus.forgot("USAGE", self._subject, sequence, f"{self._gateway_id}:{end}"):
                return
        except BusAway:
            return
        log.error("USAGE has forgotten usage it had taken: what is still here is published again")
        self._spool.again(marks.epoch)
        self._begin_anew()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
