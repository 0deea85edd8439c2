"""Engines that send anything at all: an answer, or one kind of error; never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.core.faults import upstream_broken
from services.gateway.core.protocols.anthropic_messages import chat_to_message, message_to_chat
from services.gateway.core.protocols.blocks import ChatStream
from services.gateway.core.protocols.openai_responses import chat_to_response, response_to_chat
from services.gateway.core.sse.event_stream import EventStream
from services.gateway.core.sse.events import BadStream
from services.gateway.core.usage.engine_usage import TokenUsage

from . import engines
from .conversations import CALLS, CHAT, MESSAGES, Json, clock
from .streams import NAMES, source
from .test_refusals import VALUES, places

SHAPE = chat_to_message.MessageShape("t", "m", thinks=True)
ASKED: Json = {"model": "m", "reasoning": {"summary": "auto"}}


def translators(name: str) -> list[Any]:
    match name.split(".")[0]:
        case "anthropic":
            return [message_to_chat.ChatOfMessageEvents("c", 1)]
        case "responses":
            return [response_to_chat.ChatOfResponseEvents("c")]
        case _:
            return [chat_to_message.MessageEvents(SHAPE), chat_to_response.ResponseEvents(_shape())]


def fed(translator: Any, data: bytes) -> None:
    try:
        translator.feed(data)
    except BadStream:
        if isinstance(translator, ChatStream):
            assert translator.fail(upstream_broken()).endswith(b"\n\n")  # type: ignore[attr-defined]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), max_size=8))
def test_streams_with_wrong_bytes(name: str, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray(source(name))
    for at, piece in changes:
        at %= len(data)
        data[at : at + len(piece)] = piece
    for translator in translators(name):
        fed(translator, bytes(data))
        scanner = EventStream(wants_usage=True)
        out = scanner.feed(bytes(data))
        if scanner.failure is None and isinstance(translator, ChatStream):
            again = type(translator)(translator._shape)  # type: ignore[attr-defined, call-arg]
            fed(again, out + scanner.close(TokenUsage()))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.tuples(st.integers(0, 10_000), VALUES), min_size=1, max_size=3))
def test_streams_with_anything_anywhere(name: str, changes: list[tuple[int, Any]]) -> None:
    if name.startswith("odd"):
        return
    lines = source(name).decode().split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    listed = [json.loads(one) for one in data if one.startswith("{") and one.endswith("}")]
    changed(listed, changes)
    stream = "".join(f"data: {json.dumps(one)}\n\n" for one in listed) + "data: [DONE]\n\n"
    for translator in translators(name):
        fed(translator, stream.encode())


def changed(value: Any, changes: list[tuple[int, Any]]) -> None:
    for number, new in changes:
        found = places(value)[1:]
        if not found:
            return
        *way, last = found[number % len(found)]
        holder = value
        for key in way:
            holder = holder[key]
        holder[last] = copy.deepcopy(new)


def _shape() -> chat_to_response.ResponseShape:
    return chat_to_response.shape_of(ASKED, "t", clock)


WHOLE: list[tuple[Callable[[Json], bytes], Callable[[bytes], bytes]]] = [
    (engines.chat_whole, lambda payload: chat_to_message.message(payload, SHAPE)),
    (engines.chat_whole, lambda payload: chat_to_response.response(payload, _shape())),
    (engines.message_whole, lambda payload: message_to_chat.chat(payload, "c", 1)),
    (engines.response_whole, lambda payload: response_to_chat.chat(payload, "c")),
]
ANSWERS = [answer for family in (MESSAGES, CHAT) for name, (_, answer) in family.items() if name != "tool-cut"]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(WHOLE),
    st.sampled_from([*ANSWERS, CALLS]),
    st.lists(st.tuples(st.integers(0, 10_000), VALUES), min_size=1, max_size=3),
)
def test_answers_with_anything_anywhere(
    way: tuple[Callable[[Json], bytes], Callable[[bytes], bytes]], answer: Json, changes: list[tuple[int, Any]]
) -> None:
    engine, translate = way
    body = json.loads(engine(answer))
    changed(body, changes)
    try:
        translate(json.dumps(body).encode())
    except BadStream:
        return


@pytest.mark.parametrize(
    "payload", [b"", b"null", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b"\xff", b"[" * 9999]
)
def test_answers_that_are_none(payload: bytes) -> None:
    for _, translate in WHOLE:
        try:
            answer = translate(payload)
        except BadStream as problem:
            answer = json.dumps(str(problem)).encode()
        assert len(answer) > 5
