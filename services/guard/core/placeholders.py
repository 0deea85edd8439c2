"""Where placeholders go in a text that is JSON, so that it stays JSON.

A tool's arguments are such a text, and what they hold may be one again. Inside a string a placeholder takes the place
of the characters; a number becomes a string; what is between values stays as it is, as do the names between them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import NamedTuple

import msgspec

from .decodings import MAX_DEPTH, unescaped
from .text import Text

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-0-9a-zA-Z.+]+', re.DOTALL)
_OF_A_NAME = re.compile(rb"[ \t\r\n]*:")


class Edit(NamedTuple):
    """Bytes ``start`` to ``end`` (exclusive) of a text are replaced."""

    start: int
    end: int
    replacement: str


def keep_json(data: bytes, edits: list[Edit], depth: int = 0) -> list[Edit]:
    """The edits as they leave JSON what it is; as they are where the text is none.

    They come in order and do not overlap. ``depth``: of texts in strings this one is inside of.
    """
    if not edits or not _is_json(data):
        return edits
    tokens = [match.span() for match in _TOKEN.finditer(data)]
    starts = [start for start, _ in tokens]
    inside: dict[int, list[Edit]] = {}
    for edit in edits:
        index = max(0, bisect_right(starts, edit.start) - 1)
        while index < len(tokens) and tokens[index][0] < edit.end:
            start, end = tokens[index]
            if edit.start < end and (edit.start >= start or _OF_A_NAME.match(data, end) is None):
                inside.setdefault(index, []).append(edit)
            index += 1
    out: list[Edit] = []
    for index, parts in inside.items():
        start, end = tokens[index]
        if data[start : start + 1] != b'"':
            out.append(Edit(start, end, json.dumps(parts[0].replacement)))
            continue
        start, end = start + 1, end - 1
        held = [Edit(max(start, e.start) - start, min(end, e.end) - start, e.replacement) for e in parts]
        held = [edit for edit in held if edit.start < edit.end]
        out += [Edit(start + e.start, start + e.end, e.replacement) for e in _in_string(data[start:end], held, depth)]
    return out


def _in_string(data: bytes, edits: list[Edit], depth: int) -> list[Edit]:
    if b"\\" not in data or depth == MAX_DEPTH:
        return edits
    decoded = unescaped(Text.of(data))
    if decoded.source is None or not _is_json(decoded.text.data):
        return edits
    inner = [Edit(*decoded.of_source(edit.start, edit.end), edit.replacement) for edit in edits]
    return [
        Edit(*decoded.origin(edit.start, edit.end), json.dumps(edit.replacement)[1:-1])
        for edit in keep_json(decoded.text.data, inner, depth + 1)
    ]


def _is_json(data: bytes) -> bool:
    """Whether it is an object or an array."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
