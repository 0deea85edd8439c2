"""Mutated bodies and streams: a fault that names what is wrong, or an answer; never anything else, and nothing kept."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.gateway.core.engine_errors import fault_in
from services.gateway.core.errors import body_of, protocol_of
from services.gateway.core.faults import Fault
from services.gateway.core.protocols.anthropic_messages.chat_to_message import MessageEvents, MessageShape
from services.gateway.core.protocols.openai_responses.chat_to_response import ResponseEvents, shape_of
from services.gateway.core.protocols.operations import OPERATIONS, Operation
from services.gateway.core.request.body import asking_usage, parse, received
from services.gateway.core.request.policy_text import MAX_SEGMENTS, PolicyText
from services.gateway.core.sse.event_stream import EventStream, Overlong
from services.gateway.core.sse.events import BadStream
from services.gateway.core.usage.engine_usage import TokenUsage, answer_in

from .core.protocols.conversations import clock
from .core.protocols.streams import chat_of
from .mutations import bodies, streams

BY_PATH: dict[str, Operation] = {operation.path: operation for operation in OPERATIONS}
SHAPE = shape_of({"model": "m"}, "t1", clock)
HANG_S = 2.0
GROWTH_BYTES = 48 * 1024 * 1024


def read(path: str, data: bytes) -> None:
    """What the gateway does with a body before an engine is asked. Faults are well-formed and the client's."""
    operation = BY_PATH[path]
    try:
        body = received(data)
        assert body.media is None or len(body.media) == 2
        translation = operation.translate(body, "t1", clock) if operation.translate is not None else None
        sent = translation.body if translation is not None else body
        parsed = parse(sent, operation.content_field, translation is not None)
        text = PolicyText(sent)
        text.edit(())
        assert len(text.segments()) <= MAX_SEGMENTS + 1
        if parsed.stream:
            sent = sent.edited({"stream_options": asking_usage(parsed, sent)})
        sent.edited({"model": b'"other"'})
    except Fault as fault:
        if not fault.message or not 400 <= fault.status < 500:
            raise AssertionError(f"{fault.status} {fault.message!r}") from fault
        body_of(fault, protocol_of(path), "req-1")


def passed(name: str, pieces: list[bytes]) -> None:
    """What the gateway does with an engine's stream, for clients of every protocol."""
    for client in (
        None,
        MessageEvents(MessageShape("t1", "m", thinks=True)),
        ResponseEvents(shape_of({"model": "m"}, "t1", clock)),
    ):
        chat, scanner = chat_of(name), EventStream(wants_usage=True)
        try:
            for piece in pieces:
                out = scanner.feed(chat.feed(piece))
                if client is not None:
                    client.feed(out)
                if scanner.finished or scanner.failure is not None:
                    break
            if scanner.failure is not None:
                body_of(fault_in(scanner.failure, 502))
            elif scanner.complete:
                used = scanner.usage.used() if scanner.usage is not None else TokenUsage()
                out = scanner.close(used)
                if client is not None:
                    client.feed(out)
        except (BadStream, Overlong):
            pass
        if client is not None:
            client.fail(Fault(502, "upstream_error", "broken"))
    answer_in(pieces[0])
    fault_in(pieces[0], 400)


def hammered(cases: Iterator[tuple[str, Any]], one: Callable[[str, Any], None], count: int) -> None:
    """Run all; none takes long, and after a tenth of them the process grows no more."""
    base = 0
    for n, (name, data) in enumerate(cases):
        began = time.perf_counter()
        try:
            one(name, data)
        except Exception as error:
            raise AssertionError(f"{name}: {data!r}") from error
        assert time.perf_counter() - began < HANG_S, (name, data)
        if n == count // 10:
            gc.collect()
            base = resident()
    gc.collect()
    assert resident() - base < GROWTH_BYTES


def resident(pid: int | str = "self") -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_bodies() -> None:
    hammered(bodies(1, 5_000), read, 5_000)


def test_streams() -> None:
    hammered(streams(1, 1_500), passed, 1_500)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_bodies_and_streams() -> None:
    hammered(bodies(2, 700_000), read, 700_000)
    hammered(streams(2, 300_000), passed, 300_000)
