"""The arguments of a tool call as an object, also where a model wrote none."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from services.gateway.core.json.fields import Json
from services.gateway.core.json.lossless import decoded, repaired

UNREAD = "INVALID_JSON"
"""The name under which Anthropic's guide of streamed tools has a client put arguments that are no JSON."""


def value_of(text: str) -> Json:
    """The arguments of a tool call as the object Anthropic's protocol has there; ``{}`` when there are none.

    A text that is no object is passed on as it is: ``{"INVALID_JSON": text}``, which a tool refuses, so that the model
    is told; nothing of it is left out.
    """
    if not text.strip():
        return {}
    for reading in (text.encode(), repaired(text.encode())):
        try:
            value = decoded(reading)
        except (msgspec.DecodeError, RecursionError):
            continue
        return value if isinstance(value, dict) else {UNREAD: text}
    return {UNREAD: text}


def value_of_cut(text: str) -> Json:
    """Of a text that was cut off at the answer's length limit, what is complete in it: the same as Anthropic's SDK
    makes of such a stream (a text or a key that has no end is left out)."""
    if UNREAD not in (value := value_of(text)):
        return value
    for end, open_ in reversed(_ends(text)):
        try:
            best = decoded(text[:end] + _closing(open_))
        except (msgspec.DecodeError, RecursionError):
            continue
        return best if isinstance(best, dict) else {}
    return {}


class _Open(NamedTuple):
    """What closes something that is open, and what that stands in."""

    end: str
    around: _Open | None


def _closing(open_: _Open | None) -> str:
    ends = []
    while open_ is not None:
        ends.append(open_.end)
        open_ = open_.around
    return "".join(ends)


def _ends(text: str) -> list[tuple[int, _Open | None]]:
    """Places at which a value may have just ended, with everything that is open there.

    The last few are enough: a cut leaves at most one value and its key unfinished.
    """
    ends: list[tuple[int, _Open | None]] = []
    open_: _Open | None = None
    inside = escaped = False
    for at, character in enumerate(text):
        if inside:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
                ends.append((at + 1, open_))
        elif character == '"':
            inside = True
        elif character in "{[":
            open_ = _Open("}" if character == "{" else "]", open_)
            ends.append((at + 1, open_))
        elif character in "}]":
            if open_ is not None:
                open_ = open_.around
            ends.append((at + 1, open_))
        elif character == ",":
            ends.append((at, open_))
        del ends[:-8]
    if not inside:
        ends.append((len(text), open_))
    return ends
