"""Working through a durable consumer: every message is handled at least once, a bad one is parked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from libs.events import BadPayload, UnknownTag
from libs.tasks import end

from .delivery import Delivery
from .metrics import HANDLED
from .supervision import supervise
from .transport import BusAway, RawMessage, Reader, ReaderLost, Transport

log = logging.getLogger("llmgw.bus")

MAX_DELIVERIES = 5
"""A message whose handling failed this often is parked: it would fail for ever and hold up the rest."""


class Park(Exception):
    """Raised by a handler: this message can never be handled; keep a copy aside and go on."""


class Again(Exception):
    """Raised by a handler: not now (a database is away, say). It comes again after the delay, however often."""

    def __init__(self, reason: str, delay_s: float = 1.0) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class Worker:
    """Pulls batches, hands them to a handler, acknowledges what it did.

    A handler that raises something other than Park or Again is given the batch again one by one, so that one
    bad message does not take its neighbours along.
    """

    def __init__(
        self,
        transport: Transport,
        stream: str,
        durable: str,
        handler: Callable[[list[Delivery]], Awaitable[None]],
        batch: int,
        ack_wait_s: float,
        fail: Callable[[str], None],
        on_unread: Callable[[RawMessage, str], Awaitable[None]] | None = None,
    ) -> None:
        """``on_unread`` is told of what cannot be read, and why, when it was parked."""
        self._transport = transport
        self._stream = stream
        self._durable = durable
        self._handler = handler
        self._batch = batch
        self._ack_wait_s = ack_wait_s
        self._fail = fail
        self._on_unread = on_unread
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def open(self) -> Worker:
        """Begin to pull."""
        self._task = supervise(self._run, name=f"work {self._durable}", fail=self._fail)
        return self

    async def stop(self) -> None:
        """Finish the batch in hand, give the rest back, end."""
        self._stopping = True
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=5)
            if not done:
                await end(self._task)

    async def _run(self) -> None:
        while not self._stopping:
            try:
                reader = await self._transport.pull(self._stream, self._durable, self._batch)
            except BusAway:
                await asyncio.sleep(0.5)
                continue
            try:
                await self._pull(reader)
            except (ReaderLost, BusAway) as why:
                log.info("pulling %s is opened again: %s", self._durable, why)
                await asyncio.sleep(0.2)
            finally:
                await reader.close()

    async def _pull(self, reader: Reader) -> None:
        while not self._stopping:
            first = await reader.next(0.25)
            if first is None:
                continue
            raws = [first, *reader.at_hand(self._batch - 1)]
            beat = asyncio.create_task(self._keep(raws))
            try:
                await self._handle(raws)
            finally:
                beat.cancel()

    async def _keep(self, raws: list[RawMessage]) -> None:
        """Long work keeps its messages: nobody else gets them while it lasts."""
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            for raw in raws:
                await self._transport.working(raw)

    async def _handle(self, raws: list[RawMessage]) -> None:
        good: list[Delivery] = []
        for raw in raws:
            try:
                good.append(Delivery.of(raw))
            except (BadPayload, UnknownTag) as error:
                await self._park(raw, str(error))
                if self._on_unread is not None:
                    await self._on_unread(raw, str(error))
        if not good:
            return
        try:
            await self._handler(good)
        except Again as why:
            log.info("%s waits: %s", self._durable, why)
            for delivery in good:
                await self._transport.nak(delivery.raw, why.delay_s)
        except Park as why:
            if len(good) == 1:
                await self._park(good[0].raw, str(why))
            else:
                await self._one_by_one(good)
        except Exception as error:
            if len(good) > 1:
                await self._one_by_one(good)
            else:
                await self._failed(good[0], error)
        else:
            for delivery in good:
                await self._transport.ack(delivery.raw)
                HANDLED.labels(self._durable, "done").inc()

    async def _one_by_one(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            await self._handle([delivery.raw])

    async def _failed(self, delivery: Delivery, error: Exception) -> None:
        if delivery.raw.delivered >= MAX_DELIVERIES:
            log.error("%s: message %d failed %d times", self._durable, delivery.sequence, delivery.raw.delivered)
            await self._park(delivery.raw, f"{type(error).__name__}: {error}")
            return
        log.exception("%s: message %d (%s) failed", self._durable, delivery.sequence, delivery.tag)
        HANDLED.labels(self._durable, "failed").inc()
        await self._transport.nak(delivery.raw, 2.0 ** (delivery.raw.delivered - 1))

    async def _park(self, raw: RawMessage, reason: str) -> None:
        headers: dict[str, Any] = {k: v for k, v in raw.headers.items() if not k.startswith("Nats-")}
        headers |= {
            "Nats-Msg-Id": self._transport.message_id(f"{self._stream}:{raw.sequence}/parked/{self._durable}"),
            "Llmgw-Subject": raw.subject,
            "Llmgw-Reason": reason.replace("\r", " ").replace("\n", " ")[:500],
        }
        # Prompts are never on disk: what is parked of a check is that there was one.
        body = b"" if self._stream == "CHECKS" else raw.payload
        try:
            await self._transport.store(f"llmgw.dlq.{self._stream}.{self._durable}", body, headers)
        except BusAway:
            await self._transport.nak(raw, 5)
            return
        log.error("%s: message %d of %s was parked: %s", self._durable, raw.sequence, self._stream, reason)
        HANDLED.labels(self._durable, "parked").inc()
        await self._transport.term(raw, reason)
