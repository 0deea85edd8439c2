"""Reading a JetStream consumer by one standing pull request.

In place of nats-py's ``fetch`` and push subscriptions: it notices a dead consumer by its heartbeat, leaves no orphan
pull behind and drains at once.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from nats.aio.msg import Msg

from .nats_answers import RENEWED, UNREACHABLE
from .nats_connection import NatsConnection
from .transport import BusAway, RawMessage, ReaderLost

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HEARTBEAT_S = 1.0
SILENT_S = 3.0
"""A reader that got neither message nor heartbeat for this long has lost its consumer."""
PULL_EXPIRES_S = 30.0


class PullReader:
    """One standing pull request on a consumer, renewed when it is used up, expired or silent."""

    def __init__(self, connection: NatsConnection, stream: str, consumer: str, batch: int, ordered: bool) -> None:
        self._connection = connection
        self._client = connection.client
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._drop = f"CONSUMER.DELETE.{stream}.{consumer}" if ordered else None
        self._batch = batch
        self._ordered = ordered
        self._queue: asyncio.Queue[RawMessage | str] = asyncio.Queue()
        self._left = 0
        self._heard = 0.0
        self._last = 0
        self._lost: str | None = None
        self.pending = 0

    async def open(self) -> None:
        """Raises BusAway."""
        self._inbox = self._connection.new_inbox()
        try:
            self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message)
        except UNREACHABLE as error:
            raise BusAway(f"{self._subject}: {str(error) or type(error).__name__}") from None
        self._connection.readers.add(self)
        await self._ask()

    async def _ask(self) -> None:
        if not self._connection.connected:
            # nats-py would keep the request until it is connected again: a message could go to a reader long closed.
            self.lose("not connected")
            return
        self._left = self._batch
        self._heard = time.monotonic()
        request = b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}' % (
            self._batch,
            int(PULL_EXPIRES_S * 1e9),
            int(HEARTBEAT_S * 1e9),
        )
        try:
            await self._client.publish(self._subject, request, reply=self._inbox)
        except UNREACHABLE as error:
            self.lose(str(error) or type(error).__name__)

    async def _on_message(self, message: Msg) -> None:
        self._heard = time.monotonic()
        status = message.headers.get("Status") if message.headers and message.subject == self._inbox else None
        if status is None or message.headers is None:
            self._left -= 1
            self._queue.put_nowait(from_delivery(message))
        elif status == "100":
            pass
        elif status in RENEWED or "Exceeded" in message.headers.get("Description", ""):
            self._left = 0
            self._queue.put_nowait("renew")
        else:
            self.lose(f"{status} {message.headers.get('Description', '')}")

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def lose(self, why: str) -> None:
        """It must be opened again, because of ``why``; the first reason stays."""
        if self._lost is None:
            self._lost = why
            self._queue.put_nowait("lost")

    async def next(self, timeout_s: float) -> RawMessage | None:
        deadline = time.monotonic() + timeout_s
        while True:
            if self._lost is not None:
                raise ReaderLost(self._lost)
            if self._left <= 0 and self._queue.empty():
                await self._ask()
            now = time.monotonic()
            wait = min(deadline, self._heard + SILENT_S) - now
            if self._queue.empty() and wait <= 0:
                if now >= self._heard + SILENT_S:
                    self.lose("no heartbeat came")
                    continue
                return None
            try:
                item = self._queue.get_nowait() if not self._queue.empty() else await _get(self._queue, wait)
            except TimeoutError:
                continue
            if isinstance(item, str):
                continue
            return self._checked(item)

    def _checked(self, message: RawMessage) -> RawMessage:
        if self._ordered:
            # The reply names the consumer's own count: a step other than one is a gap.
            count = message.count
            if count != self._last + 1:
                self.lose(f"message {self._last + 1} of the reader was missed")
                raise ReaderLost(self._lost)
            self._last = count
        return message

    def at_hand(self, most: int) -> list[RawMessage]:
        return [self._checked(message) for message in self._arrived(most)]

    def _arrived(self, most: int) -> list[RawMessage]:
        out: list[RawMessage] = []
        while len(out) < most and not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, RawMessage):
                out.append(item)
        return out

    async def close(self) -> None:
        """Read no more. What a durable consumer handed out and nobody took goes back to it; an ordered one goes."""
        self._connection.readers.discard(self)
        with suppress(Exception):
            await self._subscription.unsubscribe()
        if not self._ordered:
            for message in self._arrived(1_000_000):
                await self._connection.nak(message, 0)
        elif self._drop is not None and self._connection.connected:
            with suppress(Exception):
                await self._client.publish(f"$JS.API.{self._drop}", b"")
        self.lose("closed")


async def _get(queue: asyncio.Queue[RawMessage | str], timeout_s: float) -> RawMessage | str:
    async with asyncio.timeout(timeout_s):
        return await queue.get()


def from_delivery(message: Msg) -> RawMessage:
    """``$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>``, from the end."""
    tokens = message.reply.split(".")
    if len(tokens) >= 11:  # the newer form ends in a random token
        tokens = tokens[:11]
    return RawMessage(
        subject=message.subject,
        payload=message.data,
        headers=message.headers or {},
        sequence=int(tokens[-4]),
        time=_EPOCH + timedelta(microseconds=int(tokens[-2]) // 1000),
        pending=int(tokens[-1]),
        count=int(tokens[-3]),
        delivered=int(tokens[-5]),
        reply=message.reply,
    )
