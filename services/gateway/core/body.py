"""A request's body: read once, and changed only where it must be.

Only the few fields the gateway acts on are decoded; what it does not know travels untouched. An edit replaces
the value of a top-level field and leaves the bytes of every other value as they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from libs.events.policy import Segment, Span

from .errors import Fault, bad_body
from .raw import ABSENT, present

_Count = Annotated[int, msgspec.Meta(ge=0)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Asked(msgspec.Struct):
    """What the gateway reads of a completion request, chat or not."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def limits(self) -> Iterable[tuple[str, int]]:
        """The bounds on the answer's length that were asked for, by field."""
        if self.max_tokens is not None:
            yield "max_tokens", self.max_tokens
        if self.max_completion_tokens is not None:
            yield "max_completion_tokens", self.max_completion_tokens


_asked = msgspec.json.Decoder(Asked)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_AT = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(.+?)`")


def read(body: bytes, content: str) -> Asked:
    """The request in ``body``, whose text is in the field ``content`` (``messages`` or ``prompt``).

    Raises Fault (400) naming the field that is wrong.
    """
    try:
        asked = _asked.decode(body)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_body(f"The body is not valid JSON: {error}. Send one JSON object.", code="invalid_json") from None
    value: msgspec.Raw = getattr(asked, content)
    if not present(value):
        raise bad_body(f"Missing required parameter: '{content}'.", param=content, code="missing_required_parameter")
    if content == "messages":
        start = bytes(memoryview(value)[:64])
        if not start.startswith(b"["):
            raise bad_body(
                "Invalid type for 'messages': send an array of messages.", param="messages", code="invalid_type"
            )
        if start[1:].lstrip().startswith(b"]"):
            raise bad_body("'messages' is empty: send at least one message.", param="messages", code="empty_array")
    return asked


def _named(problem: str) -> Fault:
    """msgspec's words about a wrong value, as OpenAI would put them."""
    if missing := _MISSING.search(problem):
        name = missing.group(1)
        return bad_body(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    where = _AT.search(problem)
    said = _AT.sub("", problem)
    if where and where.group(1):
        name = where.group(1)
        return bad_body(f"Invalid value for '{name}': {_lower(said)}.", param=name, code="invalid_type")
    return bad_body(f"The body must be one JSON object: {_lower(said)}.", code="invalid_type")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def edited(body: bytes, changes: dict[str, bytes]) -> bytes:
    """The body with top-level fields replaced or added; values are JSON."""
    fields = _fields.decode(body)
    for name, value in changes.items():
        fields[name] = msgspec.Raw(value)
    return msgspec.json.encode(fields)


def asking_usage(asked: Asked, body: bytes) -> bytes:
    """The JSON of ``stream_options`` that asks for usage and keeps what the client put there."""
    if asked.stream_options is None:
        return b'{"include_usage":true}'
    options = msgspec.json.decode(_fields.decode(body)["stream_options"])
    return msgspec.json.encode({**options, "include_usage": True})


# what a policy reads


class Readable(msgspec.Struct):
    """The parts of a body with text in them, decoded."""

    fields: dict[str, Any]

    @property
    def unreadable(self) -> str | None:
        """The field that holds token ids instead of text: no policy can read it."""
        prompt = self.fields.get("prompt")
        return "prompt" if any(not isinstance(part, str) for part in _list(prompt)) else None

    def segments(self) -> tuple[Segment, ...]:
        """Every piece of text the model will read, with the JSON pointer to it."""
        found: list[Segment] = []
        for index, message in enumerate(_list(self.fields.get("messages"))):
            if isinstance(message, dict):
                _of_message(message, f"/messages/{index}", found)
        _of_prompt(self.fields.get("prompt"), found)
        _add(self.fields.get("suffix"), "/suffix", found)
        for index, tool in enumerate(_list(self.fields.get("tools"))):
            function = tool.get("function") if isinstance(tool, dict) else None
            if isinstance(function, dict):
                _add(function.get("description"), f"/tools/{index}/function/description", found)
        return tuple(found)

    def edit(self, edits: Iterable[Span]) -> dict[str, bytes]:
        """Replace the spans; the top-level fields that changed, as JSON. Raises LookupError for a path not here."""
        by_path: dict[str, list[Span]] = {}
        for span in edits:
            by_path.setdefault(span.path, []).append(span)
        touched: dict[str, bytes] = {}
        for path, spans in by_path.items():
            keys = [_unescaped(token) for token in path.split("/")[1:]]
            if not keys:
                raise LookupError(f"no such path in the body: {path!r}")
            holder: Any = self.fields
            for key in keys[:-1]:
                holder = holder[int(key)] if isinstance(holder, list) else holder[key]
            last: Any = int(keys[-1]) if isinstance(holder, list) else keys[-1]
            text = holder[last]
            if not isinstance(text, str):
                raise LookupError(f"no text at {path!r}")
            # From the end, so that earlier positions stay right.
            for span in sorted(spans, key=lambda span: span.start, reverse=True):
                text = text[: span.start] + span.replacement + text[span.end :]
            holder[last] = text
            touched[keys[0]] = b""
        return {name: msgspec.json.encode(self.fields[name]) for name in touched}


_READ = ("messages", "prompt", "suffix", "tools")


def readable(body: bytes) -> Readable:
    """Decode what a policy may read."""
    fields = _fields.decode(body)
    return Readable({name: msgspec.json.decode(fields[name]) for name in _READ if name in fields})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _add(text: Any, path: str, found: list[Segment]) -> None:
    if isinstance(text, str) and text:
        found.append(Segment(path=path, text=text))


def _of_message(message: dict[str, Any], at: str, found: list[Segment]) -> None:
    content = message.get("content")
    _add(content, f"{at}/content", found)
    for index, part in enumerate(_list(content)):
        if isinstance(part, str):
            _add(part, f"{at}/content/{index}", found)
        elif isinstance(part, dict):
            for name in ("text", "refusal"):
                _add(part.get(name), f"{at}/content/{index}/{name}", found)
    for name in ("reasoning_content", "reasoning", "refusal", "name"):
        _add(message.get(name), f"{at}/{name}", found)
    for index, call in enumerate(_list(message.get("tool_calls"))):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            _add(function.get("arguments"), f"{at}/tool_calls/{index}/function/arguments", found)


def _of_prompt(prompt: Any, found: list[Segment]) -> None:
    if isinstance(prompt, str):
        _add(prompt, "/prompt", found)
    elif isinstance(prompt, list):
        for index, part in enumerate(prompt):
            _add(part, f"/prompt/{index}", found)


def _unescaped(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")
