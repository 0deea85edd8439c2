"""Storing a message until it is known what became of it, behind a fence where there is one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.propagate import inject

from .delivery import MESSAGE_ID
from .transport import BusAway, BusError, Expectation, Transport, WrongSequence

RETRY_FOR_S = 15.0
"""Loss of a stream's leader on three replicas took about seven seconds; twice that is tried."""
STORE_AGAIN_S = 0.1


@dataclass(frozen=True)
class Fence:
    """Lets a message through only while no newer election stands on ``subject``."""

    subject: str
    sequence: int
    sure: Callable[[], bool] = lambda: True
    """Whether the log is known to be the one that was decided on: where it went back to after the election, the server
    would go on accepting what is decided on events that it no longer holds."""


class NotLeader(BusError):
    """The fence held: somebody newer leads."""


async def store(
    transport: Transport, subject: str, payload: bytes, headers: dict[str, str], fence: Fence | None
) -> int:
    """Store under the id in ``headers``, with the same headers for 15 s; returns the sequence.

    Raises NotLeader when the fence held, BusAway.
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
        raise NotLeader(f"{subject}: a newer leader was elected") from None


async def _landed(transport: Transport, subject: str, message_id: str) -> int | None:
    stream = "USAGE" if subject.startswith("llmgw.use.") else "EVENTS"
    last = await transport.last(stream, subject)
    return last.sequence if last is not None and last.headers.get(MESSAGE_ID) == message_id else None


def trace_context(headers: dict[str, str]) -> None:
    """Add the W3C trace context, when there is one."""
    if trace.get_current_span().get_span_context().is_valid:
        inject(headers)
