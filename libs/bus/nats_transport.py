"""The bus over NATS JetStream. The only module that imports nats.

Reading uses one standing pull request per consumer instead of nats-py's ``fetch`` and push subscriptions: it
notices a dead consumer by its heartbeat, leaves no orphan pull behind and drains at once.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro import add_service
from nats.micro.request import Request

from .transport import (
    START_LAST,
    START_NEW,
    Answerer,
    BusAway,
    Expectation,
    Headers,
    Link,
    Misconfigured,
    RawMessage,
    Reader,
    ReaderLost,
    Reply,
    Start,
    Stop,
    TooLarge,
    WrongSequence,
)

log = logging.getLogger("llmgw.bus")

OLDEST_SERVER = (2, 12, 1)
"""Older servers drop options silently; 2.9 knows neither the fence nor filtered consumers as we use them."""
WRONG_SEQUENCE = {10071, 10164}
"""JetStream's codes for an expectation that failed: on one replica, and between racing writers on three."""
HEARTBEAT_S = 1.0
SILENT_S = 3.0
"""A reader that got neither message nor heartbeat for this long has lost its consumer."""
PULL_EXPIRES_S = 30.0
HEADERS_BYTES = 16 * 1024
"""Left for headers: the server counts them too, and closes the connection of who sends more than it takes."""
RENEWED = ("404", "408")
"""A pull request that ended by itself: nothing there, or expired."""
UNREACHABLE = (
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    nats.errors.ConnectionDrainingError,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.NoStreamResponseError,
    OSError,
)


class NatsTransport:
    """One connection under one identity."""

    def __init__(self, client: Client, link: Link, identity: str, inbox_prefix: str) -> None:
        self._client = client
        self._link = link
        self._prefix = inbox_prefix
        self._readers: set[_PullReader] = set()
        self.identity = identity
        self.on_failure: Callable[[str], None] = lambda why: None
        """Called when the connection is beyond repair: the process should end and be started again."""
        self.renewed = asyncio.Event()
        """Set at every reconnect; whoever waits for it clears it."""
        self._watchdog = asyncio.create_task(self._watch(), name="bus watchdog")

    @classmethod
    async def connect(cls, url: str, identity: str, credentials: Path | None, name: str) -> NatsTransport:
        """Connect, waiting as long as it takes. Raises Misconfigured for a server that is too old."""
        link = Link()
        told = 0.0

        # A callback that raises would kill nats-py's read loop: these only note what happened.
        async def on_error(error: Exception) -> None:
            nonlocal told
            text = str(error) or type(error).__name__
            if "permissions violation" in text.lower():
                log.error("the bus refused %s: %s", identity, text)
            elif time.monotonic() - told > 5:
                told = time.monotonic()
                log.warning("bus at %s: %s", url, text)

        async def on_disconnected() -> None:
            if link.connected:
                log.warning("bus connection lost")
            link.connected = False

        async def on_reconnected() -> None:
            link.connected = True
            link.epoch += 1
            link.connected_since = time.monotonic()
            log.info("bus connected again")
            transport.renewed.set()
            for reader in list(transport._readers):
                reader.lose("the connection was renewed")

        prefix = f"_INBOX.{identity}"
        client = _Client()
        await client.connect(
            servers=url.split(","),
            name=name,
            nkeys_seed=str(credentials) if credentials else None,
            inbox_prefix=prefix,
            error_cb=on_error,
            disconnected_cb=on_disconnected,
            reconnected_cb=on_reconnected,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.25,  # type: ignore[arg-type]  # seconds; a fraction works
            connect_timeout=2,
            ping_interval=10,
            max_outstanding_pings=2,
            pending_size=8 * 1024 * 1024,
        )
        version = client.connected_server_version
        found = (version.major, version.minor, version.patch)
        if found < OLDEST_SERVER:
            await client.close()
            raise Misconfigured(
                f"the NATS server at {url} is {'.'.join(map(str, found))}; "
                f"llmgw needs {'.'.join(map(str, OLDEST_SERVER))} or newer"
            )
        link.connected = True
        link.connected_since = time.monotonic()
        transport = cls(client, link, identity, prefix)
        return transport

    @property
    def connected(self) -> bool:
        return self._link.connected and self._client.is_connected

    @property
    def connected_since(self) -> float:
        return self._link.connected_since

    async def _watch(self) -> None:
        """A read loop can die while the client still calls itself connected: ask for a pong now and then."""
        missed = 0
        while True:
            await asyncio.sleep(5)
            if not self._client.is_connected:
                missed = 0
                if self._client.is_closed:
                    self.on_failure("the bus connection was closed")
                    return
                continue
            try:
                await self._client.rtt(timeout=5)
                missed = 0
            except Exception:
                missed += 1
                if missed >= 3:
                    self.on_failure("the bus connection is dead though it calls itself connected")
                    return

    def _measure(self, subject: str, payload: bytes) -> None:
        """Raises TooLarge."""
        limit = self._client.max_payload - HEADERS_BYTES
        if len(payload) > limit:
            raise TooLarge(f"{subject}: the message has {len(payload)} bytes, {limit} at most")

    async def publish(self, subject: str, payload: bytes, headers: Headers | None = None) -> None:
        if not self.connected:
            raise BusAway("not connected to the bus")
        self._measure(subject, payload)
        try:
            await self._client.publish(subject, payload, headers=dict(headers) if headers else None)
        except UNREACHABLE as error:
            raise BusAway(str(error) or type(error).__name__) from None

    async def store(
        self, subject: str, payload: bytes, headers: Headers, expect: Expectation | None = None, timeout_s: float = 2.0
    ) -> int:
        sent = dict(headers)  # nats-py changes the dict it is given
        if expect is not None:
            sent["Nats-Expected-Last-Subject-Sequence"] = str(expect.sequence)
            if expect.subject is not None:
                sent["Nats-Expected-Last-Subject-Sequence-Subject"] = expect.subject
        if not self.connected:
            raise BusAway("not connected to the bus")
        self._measure(subject, payload)
        answer = await self._call(subject, payload, sent, timeout_s)
        return int(answer["seq"])

    async def _call(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """One JetStream API request. Raises BusAway, WrongSequence, Misconfigured."""
        try:
            message = await self._client.request(subject, payload, timeout=timeout_s, headers=headers)
        except UNREACHABLE as error:
            raise BusAway(f"{subject}: {str(error) or type(error).__name__}") from None
        answer: dict[str, Any] = json.loads(message.data)
        problem = answer.get("error")
        if problem is None:
            return answer
        code, text = problem.get("err_code", 0), problem.get("description", "")
        if code in WRONG_SEQUENCE:
            raise WrongSequence(text)
        if problem.get("code") == 503:
            raise BusAway(text)
        raise ApiRefused(code, f"{subject}: {text} ({code})")

    async def api(self, call: str, request: Any = None) -> dict[str, Any]:
        """A JetStream API call, e.g. ``STREAM.INFO.EVENTS``. Raises BusAway, ApiRefused."""
        return await self._call(f"$JS.API.{call}", b"" if request is None else json.dumps(request).encode())

    async def last(self, stream: str, subject: str) -> RawMessage | None:
        return await self._stored(stream, {"last_by_subj": subject})

    async def message(self, stream: str, sequence: int) -> RawMessage | None:
        return await self._stored(stream, {"seq": sequence})

    async def extent(self, stream: str) -> tuple[str, int]:
        info = await self.api(f"STREAM.INFO.{stream}")
        return str(info["created"]), int(info["state"]["last_seq"])

    async def _stored(self, stream: str, request: dict[str, Any]) -> RawMessage | None:
        try:
            answer = await self.api(f"STREAM.MSG.GET.{stream}", request)
        except ApiRefused as error:
            if error.code in (10037, 10057):  # no message found
                return None
            raise
        return _from_stored(answer["message"])

    async def read(self, stream: str, subjects: Sequence[str], start: Start) -> Reader:
        name = f"{self.identity}-{os.urandom(6).hex()}"
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 60 * 10**9,
            "replay_policy": "instant",
        }
        if start == START_NEW:
            config["deliver_policy"] = "new"
        elif start == START_LAST:
            config["deliver_policy"] = "last_per_subject"
        elif start == 0:
            config["deliver_policy"] = "all"
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": int(start) + 1}
        call = f"CONSUMER.CREATE.{stream}.{name}"
        if len(subjects) == 1:
            config["filter_subject"] = subjects[0]
            call += f".{subjects[0]}"
        elif subjects:
            config["filter_subjects"] = list(subjects)
        answer = await self.api(call, {"stream_name": stream, "config": config, "action": "create"})
        reader = _PullReader(self, stream, name, batch=512, ordered=True)
        reader.pending = int(answer.get("num_pending", 0))
        await reader.open()
        return reader

    async def pull(self, stream: str, durable: str, batch: int) -> Reader:
        if not self.connected:
            raise BusAway(f"{durable} cannot be pulled: not connected")
        reader = _PullReader(self, stream, durable, batch=batch, ordered=False)
        await reader.open()
        return reader

    async def _acknowledge(self, message: RawMessage, answer: bytes) -> None:
        with suppress(*UNREACHABLE):  # what is not acknowledged comes again
            await self._client.publish(message.reply, answer)

    async def ack(self, message: RawMessage) -> None:
        await self._acknowledge(message, b"+ACK")

    async def nak(self, message: RawMessage, delay_s: float) -> None:
        # A bare nak would ignore back-off and come again at once.
        await self._acknowledge(message, b'-NAK {"delay": %d}' % int(delay_s * 1e9))

    async def term(self, message: RawMessage, reason: str) -> None:
        await self._acknowledge(message, b"+TERM " + reason.encode()[:200])

    async def working(self, message: RawMessage) -> None:
        await self._acknowledge(message, b"+WPI")

    def new_inbox(self) -> str:
        return f"{self._prefix}.{os.urandom(9).hex()}"

    async def subscribe(self, subject: str, handler: Callable[[RawMessage], Awaitable[None]]) -> Stop:
        async def on_message(message: Msg) -> None:
            try:
                await handler(
                    RawMessage(message.subject, message.data, message.headers or {}, reply=message.reply or "")
                )
            except Exception:
                log.exception("a subscriber to %s failed", subject)

        subscription = await self._client.subscribe(subject, cb=on_message)
        await self._flush()

        async def stop() -> None:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

        return stop

    async def request(self, subject: str, payload: bytes, headers: Headers, timeout_s: float) -> Reply:
        try:
            message = await self._client.request(subject, payload, timeout=timeout_s, headers=dict(headers))
        except UNREACHABLE as error:
            raise BusAway(str(error) or type(error).__name__) from None
        problem = (message.headers or {}).get("Nats-Service-Error")
        return Reply(message.data, problem)

    async def serve(self, name: str, version: str, endpoints: Mapping[str, Answerer]) -> Stop:
        service = await add_service(self._client, name=name, version=version, description=f"llmgw {name}")

        def wrap(answerer: Answerer) -> Callable[[Request], Awaitable[None]]:
            async def handle(request: Request) -> None:
                reply = await answerer(request.data)
                if reply.error is None:
                    await request.respond(reply.payload)
                else:
                    await request.respond_error("400", reply.error.replace("\n", " ")[:1000], reply.payload)

            return handle

        for subject, answerer in endpoints.items():
            await service.add_endpoint(name=subject.rsplit(".", 1)[-1], subject=subject, handler=wrap(answerer))

        await self._flush()

        async def stop() -> None:
            with suppress(nats.errors.Error):
                await service.stop()

        return stop

    async def _flush(self) -> None:
        """Until the server has seen a subscription, others may find nobody there."""
        with suppress(*UNREACHABLE):
            await self._client.flush(timeout=2)

    async def close(self) -> None:
        self._link.connected = False
        self._watchdog.cancel()
        for reader in list(self._readers):
            await reader.close()
        with suppress(Exception):
            await asyncio.wait_for(self._client.flush(timeout=2), 3)
        with suppress(Exception):
            await asyncio.wait_for(self._client.close(), 5)


class _Client(Client):
    """nats-py's client, mended where it breaks: 2.16 leaves a socket open, and its read loop dies of small things."""

    async def _process_pong(self) -> None:
        # Whoever waited for this pong was cancelled or gave up: answering it would raise, and end the read loop.
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pongs_received += 1
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:
            # It ended though nobody closed it: without this the client would call itself connected for ever.
            await self._process_op_err(nats.errors.StaleConnectionError())

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        # The server may have died between accepting and greeting.
        except BaseException:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            raise


class ApiRefused(Misconfigured):
    """JetStream refused an API call."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _PullReader:
    """One standing pull request on a consumer, renewed when it is used up, expired or silent."""

    def __init__(self, transport: NatsTransport, stream: str, consumer: str, batch: int, ordered: bool) -> None:
        self._transport = transport
        self._client = transport._client
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
        self._inbox = self._transport.new_inbox()
        self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message)
        self._transport._readers.add(self)
        await self._ask()

    async def _ask(self) -> None:
        if not self._transport.connected:
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
            self._queue.put_nowait(_from_delivery(message))
        elif status == "100":
            pass
        elif status in RENEWED or "Exceeded" in message.headers.get("Description", ""):
            self._left = 0
            self._queue.put_nowait("renew")
        else:
            self.lose(f"{status} {message.headers.get('Description', '')}")

    def lose(self, why: str) -> None:
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
        out: list[RawMessage] = []
        while len(out) < most and not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, RawMessage):
                out.append(self._checked(item))
        return out

    async def close(self) -> None:
        self._transport._readers.discard(self)
        with suppress(Exception):
            await self._subscription.unsubscribe()
        if not self._ordered:
            for message in self.at_hand(1_000_000):
                await self._transport.nak(message, 0)
        elif self._drop is not None and self._transport.connected:
            with suppress(Exception):
                await self._client.publish(f"$JS.API.{self._drop}", b"")
        self.lose("closed")


async def _get(queue: asyncio.Queue[RawMessage | str], timeout_s: float) -> RawMessage | str:
    async with asyncio.timeout(timeout_s):
        return await queue.get()


def _from_delivery(message: Msg) -> RawMessage:
    """``$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>``, from the end."""
    tokens = message.reply.split(".")
    if len(tokens) >= 11:  # the newer form ends in a random token
        tokens = tokens[:11]
    return RawMessage(
        subject=message.subject,
        payload=message.data,
        headers=message.headers or {},
        sequence=int(tokens[-4]),
        time=datetime.fromtimestamp(int(tokens[-2]) / 1e9, UTC),
        pending=int(tokens[-1]),
        count=int(tokens[-3]),
        delivered=int(tokens[-5]),
        reply=message.reply,
    )


def _from_stored(stored: Mapping[str, Any]) -> RawMessage:
    raw_headers = base64.b64decode(stored["hdrs"]) if stored.get("hdrs") else b""
    headers: dict[str, str] = {}
    for line in raw_headers.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.decode().strip()] = value.decode().strip()
    return RawMessage(
        subject=stored["subject"],
        payload=base64.b64decode(stored["data"]) if stored.get("data") else b"",
        headers=headers,
        sequence=int(stored["seq"]),
        time=datetime.fromisoformat(stored["time"]),
    )
