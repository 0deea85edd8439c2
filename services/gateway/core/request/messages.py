"""The messages of a chat: their shape, and what in them is no text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from services.gateway.core.faults import Fault, bad_body
from services.gateway.core.json.fields import Json, in_words
from services.gateway.core.json.lossless import ABSENT


class CalledFunction(msgspec.Struct):
    name: str


class ToolCall(msgspec.Struct):
    function: CalledFunction | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: msgspec.Raw = ABSENT
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None


_messages = msgspec.json.Decoder(list[ChatMessage])
_parts = msgspec.json.Decoder(list[str | _Part])


def check(value: msgspec.Raw) -> None:
    """That ``messages`` is what engines expect. Raises Fault, or msgspec's errors about a field inside it."""
    if bytes(memoryview(value)[:1]) != b"[":
        raise _wrong("messages", "send an array of messages")
    read = _messages.decode(value)
    if not read:
        raise bad_body("'messages' is empty: send at least one message.", param="messages", code="empty_array")
    for index, message in enumerate(read):
        begins = bytes(memoryview(message.content)[:1])
        if begins == b"[":
            _check_parts(message.content, f"messages.{index}.content")
        elif begins not in (b'"', b"n", b""):
            raise _wrong(f"messages.{index}.content", "send text, or an array of parts")


def _check_parts(content: msgspec.Raw, at: str) -> None:
    try:
        parts = _parts.decode(content)
    except msgspec.ValidationError as error:
        place, _, reason = str(error).partition(" - at `$")[::-1]
        raise _wrong(at + re.sub(r"\[([0-9]+)\]", r".\1", place.rstrip("`")), in_words(reason)) from None
    for index, part in enumerate(parts):
        if isinstance(part, _Part) and part.type == "text" and part.text is None:
            raise _wrong(f"{at}.{index}.text", "a part of the type 'text' needs a text")


def _wrong(at: str, reason: str) -> Fault:
    return bad_body(f"Invalid value for '{at}': {reason}.", param=at, code="invalid_type")


MEDIA = {
    **dict.fromkeys(("image_url", "image", "input_image"), "images"),
    **dict.fromkeys(("input_audio", "audio_url", "audio"), "audio"),
    **dict.fromkeys(("video_url", "video"), "video"),
    **dict.fromkeys(("file", "input_file"), "files"),
}
"""Parts that are no text, in every protocol spoken here, and what they are."""


def media(fields: Json) -> tuple[str, str] | None:
    """Where the first part of a client's request is that is no text, and what it is, in whatever protocol."""
    for name in ("messages", "input"):
        value = fields.get(name)
        for index, message in enumerate(value if isinstance(value, list) else ()):
            if isinstance(message, dict):
                for key in ("content", "output"):
                    if isinstance(content := message.get(key), list):
                        for part in _media_in(content, f"{name}.{index}.{key}"):
                            return part
    return None


def media_bytes(chat: Json) -> int:
    """How much of a chat request is no text: files and images that stand in it as URLs with their data."""
    size = 0
    for message in chat["messages"]:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            for name, field in (("image_url", "url"), ("file", "file_data")):
                if isinstance(inner := part.get(name), dict):
                    size += len(inner.get(field) or "")
    return size


def _media_in(content: list[Any], at: str) -> Iterator[tuple[str, str]]:
    for index, part in enumerate(content):
        if not isinstance(part, dict):
            continue
        kind, source = part.get("type"), part.get("source")
        if isinstance(kind, str) and kind in MEDIA:
            yield f"{at}.{index}", MEDIA[kind]
        elif kind == "document" and isinstance(source, dict) and source.get("type") not in ("text", "content"):
            yield f"{at}.{index}", "files"
        elif kind == "tool_result" and isinstance(inner := part.get("content"), list):
            yield from _media_in(inner, f"{at}.{index}.content")
