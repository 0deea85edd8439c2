"""Server-sent events taken apart and put together, for streams that are translated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from services.gateway.core.json.lossless import encoded

from .event_stream import Lines


class BadStream(ValueError):
    """An engine sent what its protocol does not have."""


class Event(NamedTuple):
    name: str
    """``""`` where the stream names none."""
    data: bytes


class Events:
    """Events out of bytes cut anywhere; comments, bare fields and events without data are none."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = Lines()

    def feed(self, data: bytes) -> Iterator[Event]:
        """Raises Overlong."""
        for event in self._lines.feed(data).split(b"\n\n"):
            name = b""
            lines = []
            for line in event.split(b"\n"):
                field, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if field == b"data":
                    lines.append(value)
                elif field == b"event":
                    name = value
            if lines:
                yield Event(name.decode("utf-8", "replace"), b"\n".join(lines))


def named(name: str, value: Any) -> bytes:
    """One event as Anthropic and the Responses API write them: the name, and the data on one line."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encoded(value))


def unnamed(value: Any) -> bytes:
    """One event as Chat writes them."""
    return b"data: %s\n\n" % encoded(value)
