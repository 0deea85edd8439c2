"""The bus as services use it, over any transport."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.propagate import inject

from libs.events import (
    BadPayload,
    Command,
    Contract,
    Question,
    UnknownTag,
    decode_as,
    encode,
    pattern_of,
    subject_of,
    tag_of,
)
from libs.events.commands import Outcome, Problem

from .asking import answerer, ask
from .delivery import ACTOR, CAUSE, MESSAGE_ID, REPLY, TYPE, Delivery, check_subject, command_subject
from .follow import Follower
from .lease import Lease
from .metrics import APPEND_SECONDS, APPENDED, SKIPPED
from .remembered import forgot
from .supervision import supervise
from .topology import CONSUMERS
from .transport import (
    Answerer,
    BusAway,
    BusError,
    Expectation,
    NotLeader,
    Progress,
    RawMessage,
    Room,
    Start,
    Stop,
    TooLarge,
    Transport,
    Unanswered,
    WrongSequence,
)
from .view import View
from .work import Worker

log = logging.getLogger("llmgw.bus")

T = TypeVar("T")
RETRY_FOR_S = 15.0
"""Loss of a stream's leader on three replicas took about seven seconds; twice that is tried."""
STORE_AGAIN_S = 0.1
KEEP_FOR_S = 1.0
VERSION = "0.1.0"


@dataclass(frozen=True)
class Fence:
    """Lets a message through only while no newer election stands on ``subject``."""

    subject: str
    sequence: int
    sure: Callable[[], bool] = lambda: True
    """Whether the log is known to be the one that was decided on: where it went back to after the election, the server
    would go on accepting what is decided on events that it no longer holds."""


class Bus:
    """Append, follow, work, views, leases, commands and questions for one identity."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._outcomes: dict[str, asyncio.Future[Outcome]] = {}
        self._outcome_inbox: str | None = None
        self._stops: list[Stop] = []
        self._tasks: list[Follower | Worker] = []
        self.failed = asyncio.Event()
        """Set when something broke that only a restart of the process mends; ``failure`` says what."""
        self.failure = ""
        self.void = asyncio.Event()
        """Set when the log went back: what this process made of it must go, and the process begin anew."""
        self.void_because = ""

    @property
    def identity(self) -> str:
        """Who this is on the bus; see ``identities``."""
        return self.transport.identity

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self.transport.connected

    def fail(self, why: str) -> None:
        """Say that only a restart of the process mends what broke."""
        self.failure = self.failure or why
        self.failed.set()

    def background(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run ``work`` as a task, begun again while the bus is away; when it fails otherwise the process ends."""
        return supervise(work, name=name, fail=self.fail)

    def begin_anew(self, why: str) -> None:
        """Say that the log went back: the process is to drop what it made of it and begin anew."""
        self.void_because = self.void_because or why
        self.void.set()

    async def close(self) -> None:
        """Stop reading, working and answering, then leave."""
        for task in self._tasks:
            await task.stop()
        for stop in self._stops:
            await stop()
        await self.transport.close()

    # the log

    async def append(
        self, message: Contract, *, cause: str, actor: str | None = None, fence: Fence | None = None
    ) -> int:
        """Store an event or a batch of facts; returns its sequence.

        The message id is made from the cause and the subject, under a secret of the identity: the same decision made
        again is the same message, and nobody else can use up its id. Tries for 15 s with the same headers. Raises
        NotLeader when the fence held, BusAway, TooLarge.
        """
        subject = subject_of(message)
        tag = tag_of(message)
        headers = {
            MESSAGE_ID: self.transport.message_id(f"{cause}/{subject}"),
            TYPE: tag,
            ACTOR: actor or self.identity,
            CAUSE: cause,
        }
        _trace(headers)
        started = time.monotonic()
        try:
            sequence = await _store(self.transport, subject, encode(message), headers, fence)
        except WrongSequence:
            raise NotLeader(f"{subject}: a newer leader was elected") from None
        APPEND_SECONDS.observe(time.monotonic() - started)
        APPENDED.labels(tag).inc()
        return sequence

    async def forgot(self, stream: str, subject: str, sequence: int, cause: str) -> bool:
        """Whether the stream no longer has what was appended last on a subject of our own; see ``remembered``."""
        return await forgot(self.transport, stream, subject, sequence, cause)

    async def tell(self, message: Contract) -> None:
        """Send a measurement or a check without waiting. Dropped when the bus is away, or when it is too large."""
        headers = {TYPE: tag_of(message)}
        _trace(headers)
        try:
            await self.transport.publish(subject_of(message), encode(message), headers)
        except BusAway:
            SKIPPED.labels("bus away").inc()
        except TooLarge as error:
            SKIPPED.labels("too large").inc()
            log.error("not sent: %s", error)

    async def keep(self, message: Contract) -> bool:
        """Send a measurement and wait, not for long, until its stream has it; False: that is not known."""
        headers = {TYPE: tag_of(message)}
        try:
            await self.transport.store(subject_of(message), encode(message), headers, timeout_s=KEEP_FOR_S)
        except TooLarge as error:
            SKIPPED.labels("too large").inc()
            log.error("not sent: %s", error)
        except BusError:
            SKIPPED.labels("bus away").inc()
        else:
            return True
        return False

    async def follow(
        self,
        stream: str,
        subjects: Sequence[str],
        handler: Callable[[Delivery], Awaitable[None]],
        start: Start = 0,
        on_unread: Callable[[RawMessage, str], Awaitable[None]] | None = None,
        begin_anew: Callable[[str], None] | None = None,
    ) -> Follower:
        """Hand every message to ``handler``, in order. What cannot be read, for its tag or for what it holds, is
        skipped and counted, and ``on_unread`` is told of it and why.

        ``start``: 0 for everything, n for what comes after sequence n, ``new``, or ``last`` (the last message of
        every subject, then on). Where the stream goes back, whoever asked for ``new`` or ``last`` gets just that
        again; what was made of a whole stream is void: ``begin_anew`` is told, which by default sets ``void``.
        """

        async def handle(raw: RawMessage) -> None:
            try:
                delivery = Delivery.of(raw)
            except (UnknownTag, BadPayload) as why:
                SKIPPED.labels("unknown tag" if isinstance(why, UnknownTag) else "bad payload").inc()
                log.warning("%s sequence %d is skipped: %s", stream, raw.sequence, why)
                if on_unread is not None:
                    await on_unread(raw, str(why))
                return
            await handler(delivery)

        if begin_anew is None and isinstance(start, int):
            begin_anew = self.begin_anew
        follower = Follower(
            self.transport, stream, subjects, handle, start, on_failure=self.fail, begin_anew=begin_anew
        )
        self._tasks.append(follower)
        return follower.open()

    async def work(self, durable: str, handler: Callable[[list[Delivery]], Awaitable[None]], batch: int = 64) -> Worker:
        """Work through a durable consumer of the topology. See Worker for what a handler may raise. A command that
        cannot be read is refused, so that its sender need not wait."""
        consumer = CONSUMERS[durable]
        on_unread = self._refuse_unread if consumer.stream == "COMMANDS" else None
        worker = Worker(
            self.transport, consumer.stream, durable, handler, batch, consumer.ack_wait_s, self.fail, on_unread
        )
        self._tasks.append(worker)
        return worker.open()

    async def progress(self, durable: str) -> Progress:
        """How far the work through a durable consumer of the topology is, whoever does it. Raises BusAway."""
        return await self.transport.progress(CONSUMERS[durable].stream, durable)

    async def room(self, stream: str) -> Room:
        """What a stream holds and may hold. Raises BusAway."""
        return await self.transport.room(stream)

    async def drop(self, stream: str, before: int) -> None:
        """Remove the messages of a stream with a lower sequence. Raises BusAway."""
        await self.transport.drop(stream, before)

    def view(self, bucket: str, kind: type[T]) -> View[T]:
        """A bucket whose values are of one kind."""
        return View(self.transport, bucket, kind, self.fail)

    def lease(self, service: str, instance: str, member: str = "") -> Lease:
        """The lease of a service, or of one ``member`` of its kind, as ``instance`` sees it."""
        return Lease(self.transport, service, instance, member)

    # direct messages

    async def inbox(self, callback: Callable[[bytes], Awaitable[None]]) -> str:
        """A subject of our own that others may answer to."""
        subject = self.transport.new_inbox()

        async def handle(raw: RawMessage) -> None:
            await callback(raw.payload)

        self._stops.append(await self.transport.subscribe(subject, handle))
        return subject

    async def reply(self, subject: str, value: Any) -> None:
        """Send a value to somebody's inbox. Lost when the bus is away."""
        try:
            await self.transport.publish(subject, encode(value))
        except BusAway:
            SKIPPED.labels("bus away").inc()
        except TooLarge as error:
            SKIPPED.labels("too large").inc()
            log.error("not sent: %s", error)

    async def listen(self, contract: type[T], handler: Callable[[T], Awaitable[None]], **ids: str) -> Stop:
        """Hear measurements as they are sent, none that were sent before."""

        async def handle(raw: RawMessage) -> None:
            try:
                message = decode_as(contract, raw.payload)
                check_subject(message, raw.subject)  # type: ignore[arg-type]
            except BadPayload:
                SKIPPED.labels("bad payload").inc()
                return
            await handler(message)

        stop = await self.transport.subscribe(pattern_of(contract, **ids), handle)  # type: ignore[arg-type]
        self._stops.append(stop)
        return stop

    # commands

    async def command(
        self, command: Command, *, actor: str | None = None, command_id: str | None = None, timeout_s: float = 30.0
    ) -> Outcome:
        """Send a command to its owner and wait for what became of it. ``actor``: for whom, where one may say so.

        Raises BusAway when it could not be logged, TooLarge when it never can be, Unanswered when it is logged but no
        outcome came.
        """
        command_id = command_id or f"c-{os.urandom(10).hex()}"
        inbox = await self._inbox_for_outcomes()
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._outcomes[command_id] = future
        headers = {
            MESSAGE_ID: command_id,
            TYPE: tag_of(command),
            ACTOR: actor or self.identity,
            REPLY: inbox,
        }
        _trace(headers)
        try:
            await _store(self.transport, command_subject(command, self.identity), encode(command), headers, None)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise Unanswered(
                f"the command is logged as {command_id}, but its owner gave no outcome within {timeout_s:g} s; "
                "it is carried out when the owner is back (commands wait one hour)"
            ) from None
        finally:
            self._outcomes.pop(command_id, None)

    async def answer_command(self, delivery: Delivery, outcome: Outcome) -> None:
        """Tell whoever sent a command what became of it."""
        if inbox := delivery.headers.get(REPLY):
            await self.reply(inbox, outcome)

    async def _refuse_unread(self, raw: RawMessage, why: str) -> None:
        if not (inbox := raw.headers.get(REPLY)):
            return
        message = (
            f"{self.identity} cannot read the command {raw.headers.get(TYPE, 'without a type')}: {why}. It is older "
            f"than what sent the command: update {self.identity}, then send it again"
        )
        problem = Problem(path="", message=message)
        command_id = raw.headers.get(MESSAGE_ID, "")
        refusal = Outcome(command_id=command_id, status="refused", message=message, problems=(problem,))
        await self.reply(inbox, refusal)

    async def _inbox_for_outcomes(self) -> str:
        if self._outcome_inbox is None:

            async def on_outcome(payload: bytes) -> None:
                outcome = decode_as(Outcome, payload)
                future = self._outcomes.get(outcome.command_id)
                if future is not None and not future.done():
                    future.set_result(outcome)

            self._outcome_inbox = await self.inbox(on_outcome)
        return self._outcome_inbox

    # questions

    async def ask(self, question: Question, kind: type[T], timeout_s: float = 5.0) -> T:
        """Ask a running service, one that is just being restarted too.

        Raises AskFailed, whose text is safe to show, and BadPayload for an answer that is not a ``kind``.
        """
        headers = {TYPE: tag_of(question)}
        _trace(headers)
        return await ask(self.transport, question, headers, kind, timeout_s)

    async def answer(
        self,
        service: str,
        handlers: Mapping[type[Question], Callable[[Any], Awaitable[Any]]],
        **ids: str,
    ) -> None:
        """Answer questions, as a NATS service. A handler raises Refused for an error the asker may see."""
        endpoints: dict[str, Answerer] = {}
        for kind, handler in handlers.items():
            endpoints[pattern_of(kind, **ids)] = answerer(kind, handler)
        self._stops.append(await self.transport.serve(service, VERSION, endpoints))


async def _store(
    transport: Transport, subject: str, payload: bytes, headers: dict[str, str], fence: Fence | None
) -> int:
    """Store under the id in ``headers``, with the same headers for 15 s; returns the sequence.

    Raises WrongSequence when the fence held, BusAway, TooLarge.
    """
    deadline = time.monotonic() + RETRY_FOR_S
    while True:
        try:
            if fence is not None and not fence.sure():
                raise BusAway(f"{subject}: whether the log went back is not known yet")
            return await _store_once(transport, subject, payload, headers, fence)
        except BusAway:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(STORE_AGAIN_S)


async def _store_once(
    transport: Transport, subject: str, payload: bytes, headers: dict[str, str], fence: Fence | None
) -> int:
    expect = Expectation(fence.sequence, fence.subject) if fence else None
    try:
        return await transport.store(subject, payload, headers, expect)
    except WrongSequence as why:
        # Our own earlier try may have landed without its answer reaching us.
        landed = await _landed(transport, subject, headers[MESSAGE_ID])
        if landed is not None:
            return landed
        assert fence is not None
        standing = await transport.last("EVENTS", fence.subject)
        if standing is not None and standing.sequence == fence.sequence:
            # Replicas do not agree yet on another message under the same fence.
            raise BusAway(f"{subject}: {why}") from None
        raise


async def _landed(transport: Transport, subject: str, message_id: str) -> int | None:
    stream = "USAGE" if subject.startswith("llmgw.use.") else "EVENTS"
    last = await transport.last(stream, subject)
    return last.sequence if last is not None and last.headers.get(MESSAGE_ID) == message_id else None


def _trace(headers: dict[str, str]) -> None:
    """Add the W3C trace context, when there is one."""
    if trace.get_current_span().get_span_context().is_valid:
        inject(headers)
