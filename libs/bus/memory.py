"""The bus in memory: the same promises without a server, for tests of what stands on the bus.

One ``MemoryCluster`` is one "server"; every identity gets its own bus on it. What it promises is what the
contract tests ask of both transports: order, deduplication, fences, expiry, redelivery, list and watch.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from libs.events.subjects import matches

from .bus import Bus
from .topology import CONSUMERS, SECOND, STREAMS
from .transport import (
    START_LAST,
    START_NEW,
    Answerer,
    BusAway,
    Expectation,
    Extent,
    Full,
    Headers,
    Progress,
    RawMessage,
    Reader,
    Reply,
    Room,
    Start,
    Stop,
    WrongSequence,
    keyed_id,
)

Handler = Callable[[RawMessage], Awaitable[None]]


@dataclass
class _Durable:
    pending: deque[int] = field(default_factory=deque)
    handed: dict[int, float] = field(default_factory=dict)
    """Sequence to when it is handed out again."""
    delivered: dict[int, int] = field(default_factory=dict)


@dataclass
class _Stream:
    name: str
    subjects: tuple[str, ...]
    max_age_s: float
    work_queue: bool
    per_subject: int
    bound: int
    """Bytes of payloads at most, -1: any number. A stream that keeps what it has takes nothing more then."""
    keeps: bool
    messages: dict[int, RawMessage] = field(default_factory=dict)
    stored: dict[int, float] = field(default_factory=dict)
    sequence: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    durables: dict[str, _Durable] = field(default_factory=dict)

    def expire(self) -> None:
        if not self.max_age_s:
            return
        edge = time.monotonic() - self.max_age_s
        for sequence in [s for s, at in self.stored.items() if at < edge]:
            self.drop(sequence)

    def drop(self, sequence: int) -> None:
        self.messages.pop(sequence, None)
        self.stored.pop(sequence, None)

    def last(self, subject: str) -> RawMessage | None:
        self.expire()
        for sequence in reversed(self.messages):
            if matches(subject, self.messages[sequence].subject):
                return self.messages[sequence]
        return None


class MemoryCluster:
    """Streams, subscriptions and services shared by the buses made on it."""

    def __init__(self) -> None:
        self.streams = {
            stream.name: _Stream(
                stream.name,
                tuple(stream.config["subjects"]),
                stream.config["max_age"] / SECOND,
                stream.config["retention"] == "workqueue",
                stream.config["max_msgs_per_subject"],
                stream.config["max_bytes"],
                stream.config["discard"] == "new",
            )
            for stream in STREAMS
        }
        for consumer in CONSUMERS.values():
            self.streams[consumer.stream].durables[consumer.durable] = _Durable()
        self.subscriptions: dict[int, tuple[str, Handler]] = {}
        self.services: dict[str, list[Answerer]] = {}
        self.changed = asyncio.Condition()
        self.created = os.urandom(4).hex()
        self.away = False
        """Set by a test: nothing answers."""
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def bus(self, identity: str = "operator") -> Bus:
        """Another connection to it, under an identity."""
        return Bus(MemoryTransport(self, identity))

    def number(self) -> int:
        """A new one each time."""
        return next(self._numbers)

    async def put(
        self, subject: str, payload: bytes, headers: Headers, expect: Expectation | None
    ) -> tuple[_Stream | None, int]:
        """Store in the stream that takes the subject: that stream and the sequence, None and 0 where none takes it.

        A message whose id the stream knows is not stored again: the sequence is the first one's. Raises WrongSequence,
        and Full where the stream is at its bound and keeps what it has.
        """
        stream = next((s for s in self.streams.values() if any(matches(p, subject) for p in s.subjects)), None)
        if stream is None:
            return None, 0
        if expect is not None:
            last = stream.last(expect.subject or subject)
            if (last.sequence if last else 0) != expect.sequence:
                raise WrongSequence(f"wrong last sequence: {last.sequence if last else 0}")
        message_id = headers.get("Nats-Msg-Id")
        if message_id is not None and message_id in stream.ids:
            return stream, stream.ids[message_id]
        held = sum(len(message.payload) for message in stream.messages.values()) if stream.bound > 0 else 0
        if stream.bound > 0 and stream.keeps and held + len(payload) > stream.bound:
            raise Full(f"{stream.name}: maximum bytes exceeded")
        stream.sequence += 1
        sequence = stream.sequence
        stream.messages[sequence] = RawMessage(subject, payload, dict(headers), sequence, datetime.now(UTC))
        stream.stored[sequence] = time.monotonic()
        if message_id is not None:
            stream.ids[message_id] = sequence
        if stream.per_subject > 0:
            same = [s for s, m in stream.messages.items() if m.subject == subject]
            for old in same[: -stream.per_subject]:
                stream.drop(old)
        for durable, state in stream.durables.items():
            if any(matches(p, subject) for p in CONSUMERS[durable].subjects):
                state.pending.append(sequence)
        async with self.changed:
            self.changed.notify_all()
        return stream, sequence

    async def spread(self, message: RawMessage) -> None:
        """Hand it to whoever subscribed to its subject, each in a task of its own."""
        for pattern, handler in list(self.subscriptions.values()):
            if matches(pattern, message.subject):
                task = asyncio.ensure_future(handler(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


class MemoryTransport:
    """One connection to a ``MemoryCluster``; what its methods promise stands in ``transport``."""

    def __init__(self, cluster: MemoryCluster, identity: str) -> None:
        self._cluster = cluster
        self.identity = identity

    @property
    def connected(self) -> bool:
        return not self._cluster.away

    def _reach(self) -> None:
        if self._cluster.away:
            raise BusAway("not connected to the bus")

    def message_id(self, name: str) -> str:
        return keyed_id(self.identity.encode(), name)

    async def publish(self, subject: str, payload: bytes, headers: Headers | None = None) -> None:
        self._reach()
        await self._cluster.put(subject, payload, headers or {}, None)
        await self._cluster.spread(RawMessage(subject, payload, headers or {}))

    async def store(
        self, subject: str, payload: bytes, headers: Headers, expect: Expectation | None = None, timeout_s: float = 2.0
    ) -> int:
        self._reach()
        stream, sequence = await self._cluster.put(subject, payload, headers, expect)
        if stream is None:
            raise BusAway(f"no stream takes {subject}")
        await self._cluster.spread(RawMessage(subject, payload, headers))
        return sequence

    async def last(self, stream: str, subject: str) -> RawMessage | None:
        self._reach()
        return self._cluster.streams[stream].last(subject)

    async def last_here(self, stream: str, subject: str) -> RawMessage | None:
        return await self.last(stream, subject)

    async def message(self, stream: str, sequence: int) -> RawMessage | None:
        self._reach()
        return self._cluster.streams[stream].messages.get(sequence)

    async def extent(self, stream: str) -> Extent:
        self._reach()
        return Extent(self._cluster.created, self._cluster.streams[stream].sequence)

    async def read(self, stream: str, subjects: Sequence[str], start: Start) -> Reader:
        self._reach()
        return _OrderedReader(self._cluster, self._cluster.streams[stream], tuple(subjects), start)

    async def pull(self, stream: str, durable: str, batch: int) -> Reader:
        self._reach()
        return _DurableReader(self._cluster, self._cluster.streams[stream], durable)

    async def progress(self, stream: str, durable: str) -> Progress:
        self._reach()
        consumer = self._cluster.streams[stream].durables[durable]
        handed_out = max(consumer.delivered, default=0)
        open_ = [*consumer.handed, *(sequence for sequence in consumer.pending if sequence in consumer.delivered)]
        return Progress(min(open_) - 1 if open_ else handed_out, handed_out)

    async def room(self, stream: str) -> Room:
        self._reach()
        stored = self._cluster.streams[stream]
        held = sum(len(message.payload) for message in stored.messages.values())
        return Room(held, stored.bound, min(stored.messages, default=stored.sequence + 1), stored.sequence)

    async def drop(self, stream: str, before: int) -> None:
        self._reach()
        stored = self._cluster.streams[stream]
        for sequence in [sequence for sequence in stored.messages if sequence < before]:
            stored.drop(sequence)

    def _durable(self, message: RawMessage) -> tuple[_Stream, _Durable]:
        stream, durable = message.reply.split("/")
        return self._cluster.streams[stream], self._cluster.streams[stream].durables[durable]

    async def ack(self, message: RawMessage) -> None:
        stream, durable = self._durable(message)
        durable.handed.pop(message.sequence, None)
        if stream.work_queue:
            stream.drop(message.sequence)

    async def nak(self, message: RawMessage, delay_s: float) -> None:
        _, durable = self._durable(message)
        if message.sequence in durable.handed:
            durable.handed[message.sequence] = time.monotonic() + delay_s
        async with self._cluster.changed:
            self._cluster.changed.notify_all()

    async def term(self, message: RawMessage, reason: str) -> None:
        await self.ack(message)

    async def working(self, message: RawMessage) -> None:
        _, durable = self._durable(message)
        wait = CONSUMERS[message.reply.split("/")[1]].ack_wait_s
        if message.sequence in durable.handed:
            durable.handed[message.sequence] = time.monotonic() + wait

    def new_inbox(self) -> str:
        return f"_INBOX.{self.identity}.{os.urandom(6).hex()}"

    async def subscribe(self, subject: str, handler: Handler) -> Stop:
        number = self._cluster.number()
        self._cluster.subscriptions[number] = (subject, handler)

        async def stop() -> None:
            self._cluster.subscriptions.pop(number, None)

        return stop

    async def request(self, subject: str, payload: bytes, headers: Headers, timeout_s: float) -> Reply:
        self._reach()
        answerers = self._cluster.services.get(subject)
        if not answerers:
            raise BusAway("no responders")
        answerers.append(answerers.pop(0))  # they take turns
        try:
            async with asyncio.timeout(timeout_s):
                return await answerers[0](payload)
        except TimeoutError:
            raise BusAway("timeout") from None

    async def serve(self, name: str, version: str, endpoints: Mapping[str, Answerer]) -> Stop:
        for subject, answerer in endpoints.items():
            self._cluster.services.setdefault(subject, []).append(answerer)

        async def stop() -> None:
            for subject, answerer in endpoints.items():
                self._cluster.services[subject].remove(answerer)

        return stop

    async def close(self) -> None:
        return None


class _OrderedReader:
    lost = False

    def __init__(self, cluster: MemoryCluster, stream: _Stream, subjects: tuple[str, ...], start: Start) -> None:
        self._cluster = cluster
        self._stream = stream
        self._subjects = subjects
        stream.expire()
        if start == START_NEW:
            self._after, first = stream.sequence, []
        elif start == START_LAST:
            newest = {m.subject: m for m in stream.messages.values() if self._wanted(m)}
            first = sorted(m.sequence for m in newest.values())
            self._after = stream.sequence
        else:
            first = []
            self._after = int(start)
        self._first = deque(first)
        self.pending = self._waiting()

    def _wanted(self, message: RawMessage) -> bool:
        return not self._subjects or any(matches(p, message.subject) for p in self._subjects)

    def _waiting(self) -> int:
        return len(self._first) + sum(
            1 for s, m in self._stream.messages.items() if s > self._after and self._wanted(m)
        )

    def _take(self) -> RawMessage | None:
        while self._first:
            message = self._stream.messages.get(self._first.popleft())
            if message is not None:
                return replace(message, pending=self._waiting())
        for sequence, message in self._stream.messages.items():
            if sequence > self._after and self._wanted(message):
                self._after = sequence
                return replace(message, pending=self._waiting())
        return None

    async def next(self, timeout_s: float) -> RawMessage | None:
        return await _wait(self._cluster, self._take, timeout_s)

    def at_hand(self, most: int) -> list[RawMessage]:
        return [m for m in (self._take() for _ in range(most)) if m is not None]

    async def close(self) -> None:
        return None


class _DurableReader:
    lost = False

    def __init__(self, cluster: MemoryCluster, stream: _Stream, durable: str) -> None:
        self._cluster = cluster
        self._stream = stream
        self._name = durable
        self._durable = stream.durables[durable]
        self.pending = len(self._durable.pending)

    def _take(self) -> RawMessage | None:
        now = time.monotonic()
        self._stream.expire()
        due = [s for s, at in self._durable.handed.items() if at <= now]
        self._durable.pending.extendleft(sorted(due, reverse=True))
        for sequence in due:
            del self._durable.handed[sequence]
        while self._durable.pending:
            sequence = self._durable.pending.popleft()
            message = self._stream.messages.get(sequence)
            if message is None:
                continue
            count = self._durable.delivered[sequence] = self._durable.delivered.get(sequence, 0) + 1
            self._durable.handed[sequence] = now + CONSUMERS[self._name].ack_wait_s
            return replace(
                message,
                delivered=count,
                pending=len(self._durable.pending),
                reply=f"{self._stream.name}/{self._name}",
            )
        return None

    async def next(self, timeout_s: float) -> RawMessage | None:
        return await _wait(self._cluster, self._take, timeout_s)

    def at_hand(self, most: int) -> list[RawMessage]:
        out: list[RawMessage] = []
        while len(out) < most and (message := self._take()) is not None:
            out.append(message)
        return out

    async def close(self) -> None:
        return None


async def _wait(cluster: MemoryCluster, take: Callable[[], RawMessage | None], timeout_s: float) -> RawMessage | None:
    deadline = time.monotonic() + timeout_s
    while (message := take()) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        try:
            # Redelivery is a matter of time, not of a notification: look again now and then.
            async with asyncio.timeout(min(left, 0.05)), cluster.changed:
                await cluster.changed.wait()
        except TimeoutError:
            continue
    return message
