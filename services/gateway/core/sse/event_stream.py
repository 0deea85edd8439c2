"""Server-sent events on their way through: found in the bytes, counted, and only touched where they must be.

Almost every event of a stream is one ``data:`` line with one delta, and differs from the one before only in its
text: such an event is recognised by the bytes around the text, and passes without becoming an object. Several
of them in one block are recognised by counting a few byte patterns. A block with anything else in it (usage, an
error, the end, tool calls, comments, several lines) is taken apart event by event.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from services.gateway.core.json.lossless import ABSENT, present, repaired
from services.gateway.core.usage.engine_usage import EngineUsage, TokenUsage, usage_object

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""One event may be long (a whole tool call in a delta); an endless one is a broken engine."""

LEARNING = 3
"""Events with text that are taken apart to find one that looks like all that follow."""

_EMPTY = re.compile(rb'"(?:delta":\s*\{\s*\}|content":\s*""|content":\s*null|text":\s*"")')
_SPECIAL = re.compile(rb'"usage"|"error"|\[DONE\]|"tool_calls"|"reasoning')
_TEXT = re.compile(rb'"(?:content|text)":\s*"((?:[^"\\]|\\.)+)"')


class Overlong(ValueError):
    """An event is longer than any real one."""


class Lines:
    """Blocks of whole events out of bytes cut anywhere; every line end becomes a single LF."""

    __slots__ = ("_began", "_held", "_held_bytes", "_swallow")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._swallow = False
        self._began = False

    def feed(self, data: bytes) -> bytes:
        """Everything up to and with the last blank line. Raises Overlong."""
        if self._swallow and data:
            # The CR that ended the last piece was half of a CRLF.
            if data[0] == 10:
                data = data[1:]
            self._swallow = False
        if b"\r" in data:
            self._swallow = data[-1] == 13
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._held:
            if b"\n" not in data:
                self._hold(data)
                return b""
            self._held.append(data)
            data = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
        if not self._began and data:
            if b"\xef\xbb\xbf".startswith(data):
                self._hold(data)
                return b""
            data = data.removeprefix(b"\xef\xbb\xbf")
            self._began = True
        end = data.rfind(b"\n\n")
        if end < 0:
            if data:
                self._hold(data)
            return b""
        end += 2
        if end < len(data):
            self._hold(data[end:])
            return data[:end]
        return data

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > MAX_EVENT_BYTES:
            raise Overlong(f"an event of the engine is longer than {MAX_EVENT_BYTES} bytes")


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: EngineUsage | None = None
    error: msgspec.Raw = ABSENT


_chunk = msgspec.json.Decoder(_Chunk)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _has_content(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(
        delta.content
        or delta.tool_calls
        or delta.reasoning_content
        or delta.reasoning
        or delta.refusal
        or delta.function_call
    )


def data_of(event: bytes) -> bytes | None:
    """The data of one event (its lines joined by LF); None when it has none."""
    lines = []
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None


class EventStream:
    """One answer of an engine, as events.

    ``feed`` takes bytes as they come and gives the events the client may have now. Before the first event with
    content nothing is given (``started`` is False): an error may still become a real status. Usage is read from
    any event and given as one last event, to a client that asked for it; ``close`` makes the end of the stream.
    """

    __slots__ = (
        *(
            "_after",
            "_before",
            "_first",
            "_last",
            "_lines",
            "_opening",
            "_usage_event",
            "_choices",
            "_several",
            "failure",
            "finished",
        ),
        *("started", "stopped", "tokens", "usage", "wants_usage"),
    )

    def __init__(self, wants_usage: bool, choices: int = 1) -> None:
        """``choices``: answers in it; of several an engine may say what each used."""
        self._lines = Lines()
        self._opening: list[bytes] = []
        self._first: bytes | None = None
        self._usage_event: bytes | None = None
        self._last = b""
        self._before = self._after = b""
        """The bytes around the text of an event that had nothing but text; b"": none was seen."""
        self.wants_usage = wants_usage
        self._choices = choices
        self._several: list[TokenUsage] = []
        """Said at the end of each of several choices."""
        self.tokens = 0
        """Events with content given so far: at least so many tokens."""
        self.usage: EngineUsage | None = None
        self.started = False
        self.stopped = False
        """A finish reason was seen in an event that was taken apart; see ``complete``."""
        self.finished = False
        """``[DONE]`` was seen."""
        self.failure: bytes | None = None
        """Data of the error event that ends the stream."""

    def feed(self, data: bytes) -> bytes:
        """The events to pass on, joined. Raises Overlong."""
        block = self._lines.feed(data)
        if not block or self.finished or self.failure is not None:
            return b""
        before = self._before
        if before and block.startswith(before) and block.endswith(self._after):
            text = len(block) - len(before) - len(self._after)
            if text > 0 and block.find(b'"', len(before)) == len(before) + text:
                self.tokens += 1
                self._last = b""
                return block
        if self.started and (before or self.tokens > LEARNING) and _SPECIAL.search(block) is None:
            events = block.count(b"\n\n")
            plain = block.count(b"\n\ndata:") + 1
            if plain == events and block.startswith(b"data:") and block.count(b"\n") == 2 * events:
                self.tokens += events - len(_EMPTY.findall(block))
                self._last = block
                return block
        return self._apart(block)

    @property
    def complete(self) -> bool:
        """Whether the answer ended as an answer does: with ``[DONE]``, or at least with a finish reason."""
        if self.finished or self.stopped:
            return True
        for event in self._last.split(b"\n\n"):
            if event and (chunk := _decoded(data_of(event) or b"")) is not None:
                self._note_stop(chunk)
        return self.stopped

    def used(self) -> TokenUsage | None:
        """What the engine said the answer used, all of its choices; None: it did not say."""
        if self._choices > 1 and len(self._several) > 1:
            together = self._several[0]
            for used in self._several[1:]:
                together = TokenUsage(
                    prompt=max(together.prompt, used.prompt),
                    cached=min(together.cached, used.cached),
                    completion=together.completion + used.completion,
                    reasoning=together.reasoning + used.reasoning,
                )
            return together
        return self.usage.used() if self.usage is not None else None

    def close(self, used: TokenUsage) -> bytes:
        """The last events: usage for a client that asked, then ``[DONE]``."""
        if not self.wants_usage:
            return b"data: [DONE]\n\n"
        usage_event = self._usage_event if self.usage is not None and self.usage.used() == used else None
        return (usage_event or self._made_usage(used)) + b"data: [DONE]\n\n"

    def _apart(self, block: bytes) -> bytes:
        out: list[bytes] = []
        for event in block.split(b"\n\n"):
            data = data_of(event)
            if data is None:
                continue  # comments and bare fields: nothing in them is the client's
            if data == b"[DONE]":
                self.finished = True
                break
            kept = self._one(data)
            if self.failure is not None:
                break
            if kept is None:
                continue
            if not self.started:
                self._opening.append(kept)
            else:
                if self._opening:
                    out += self._opening
                    self._opening.clear()
                out.append(kept)
        if self.finished and not self.started:
            # An answer without a single token is an answer too.
            self.started = True
            out = self._opening
        return b"".join(out)

    def _one(self, data: bytes) -> bytes | None:
        """One event's data, counted; the event to pass on, or None."""
        chunk = _decoded(data)
        if chunk is None:
            self.started = True
            self.tokens += 1
            return _event(data)
        if present(chunk.error):
            self.failure = data
            return None
        if chunk.usage is not None:
            self.usage = chunk.usage
            if not chunk.choices:
                self._several.append(chunk.usage.used())
                self._usage_event = _event(data)
                return None
        if self._first is None:
            self._first = data
        self._note_stop(chunk)
        if any(_has_content(choice) for choice in chunk.choices or ()):
            self.tokens += 1
            self.started = True
            if not self._before:
                self._learn(data, chunk)
        elif self.stopped:
            self.started = True
        return _event(_without_usage(data) if b'"usage"' in data else data)

    def _learn(self, data: bytes, chunk: _Chunk) -> None:
        """Keep what surrounds the text of an event, when it has one text and nothing else to be looked at."""
        event = _event(data)
        texts = _TEXT.findall(event)
        alone = len(texts) == 1 and len(chunk.choices or ()) == 1 and not self.stopped
        if alone and b'"role"' not in event and _SPECIAL.search(event) is None:
            begins, ends = _TEXT.search(event).span(1)  # type: ignore[union-attr]
            self._before, self._after = event[:begins], event[ends:]

    def _note_stop(self, chunk: _Chunk) -> None:
        if any(choice.finish_reason for choice in chunk.choices or ()):
            self.stopped = True

    def _made_usage(self, used: TokenUsage) -> bytes:
        fields: dict[str, Any] = {"object": "chat.completion.chunk"}
        if self._first is not None:
            try:
                first = _fields.decode(self._first)
            except (msgspec.DecodeError, RecursionError):
                first = {}
            fields = {k: first[k] for k in ("id", "object", "created", "model", "system_fingerprint") if k in first}
        return _event(msgspec.json.encode({**fields, "choices": [], "usage": usage_object(used)}))


def _decoded(data: bytes) -> _Chunk | None:
    try:
        return _chunk.decode(repaired(data))
    except (msgspec.DecodeError, RecursionError):
        return None


def _event(data: bytes) -> bytes:
    if b"\n" in data:
        data = data.replace(b"\n", b"\ndata: ")
    return b"data: %s\n\n" % data


def _without_usage(data: bytes) -> bytes:
    try:
        fields = _fields.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return data  # a name in it is no text; the client may make of it what it can
    fields.pop("usage", None)
    return msgspec.json.encode(fields)
