"""Streams of each kind of engine, through the gateway's scanner and every translation.

``python -m tests.unit.gateway.core.protocols.streams`` writes what comes out of each next to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from services.gateway.core.engine_errors import fault_in
from services.gateway.core.errors import event_of
from services.gateway.core.protocols.anthropic_messages.chat_to_message import MessageEvents, MessageShape
from services.gateway.core.protocols.anthropic_messages.message_to_chat import ChatOfMessageEvents
from services.gateway.core.protocols.openai_responses.chat_to_response import ResponseEvents, shape_of
from services.gateway.core.protocols.openai_responses.response_to_chat import ChatOfResponseEvents
from services.gateway.core.sse.event_stream import EventStream
from services.gateway.core.usage.engine_usage import TokenUsage

from .conversations import Json, clock
from .record import events, written

DATA = Path(__file__).parents[4] / "data" / "streams"
NAMES = sorted(path.stem for path in DATA.glob("*.sse"))


class Passing:
    """A stream that is Chat already."""

    def feed(self, data: bytes) -> bytes:
        return data


def chat_of(name: str) -> Passing | ChatOfMessageEvents | ChatOfResponseEvents:
    match name.split(".")[0]:
        case "anthropic":
            return ChatOfMessageEvents("chatcmpl-1", 1764000000)
        case "responses":
            return ChatOfResponseEvents("chatcmpl-1")
        case _:
            return Passing()


def outcome(name: str, pieces: Iterable[bytes]) -> dict[str, bytes]:
    """What a client of each protocol gets."""
    chat, scanner = chat_of(name), EventStream(wants_usage=True)
    to_message = MessageEvents(MessageShape("t1", "m", thinks=True))
    to_response = ResponseEvents(shape_of({"model": "m", "reasoning": {"summary": "auto"}}, "t1", clock))
    out = {"chat": b"", "messages": b"", "responses": b""}

    def add(data: bytes) -> None:
        out["chat"] += data
        out["messages"] += to_message.feed(data)
        out["responses"] += to_response.feed(data)

    for piece in pieces:
        add(scanner.feed(chat.feed(piece)))
    if scanner.failure is not None:
        fault = fault_in(scanner.failure, 502)
        out["chat"] += event_of(fault)
        out["messages"] += to_message.fail(fault)
        out["responses"] += to_response.fail(fault)
    else:
        assert scanner.complete
        add(scanner.close(scanner.usage.used() if scanner.usage is not None else TokenUsage()))
        assert to_message.finished
        assert to_response.finished
    return out


def recorded(name: str, data: bytes) -> Json:
    return {protocol: events(stream) for protocol, stream in outcome(name, [data]).items()}


def path_of(name: str) -> Path:
    return DATA / f"{name}.json"


def source(name: str) -> bytes:
    return (DATA / f"{name}.sse").read_bytes()


def golden(name: str) -> dict[str, bytes]:
    stored = json.loads(path_of(name).read_text(encoding="utf-8"))
    return {protocol: "".join(f"{event}\n\n" for event in listed).encode() for protocol, listed in stored.items()}


def main() -> None:
    for name in NAMES:
        path_of(name).write_text(written(recorded(name, source(name))), encoding="utf-8")


if __name__ == "__main__":
    main()
