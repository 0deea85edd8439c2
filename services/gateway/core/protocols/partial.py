"""JSON that was cut off: the tool call of an answer that reached its length limit."""

from __future__ import annotations

from typing import Any

import msgspec


def value_of(text: str) -> Any:
    """The arguments of a tool call as the object Anthropic's protocol has there.

    Of a text that was cut off, what is complete in it: the same as its SDK makes of such a stream (a text or a key
    that has no end is left out). ``{}`` when there is nothing.
    """
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except msgspec.DecodeError:
        return _repaired(text)


def _repaired(text: str) -> Any:
    best: Any = {}
    for end, closing in reversed(_ends(text)):
        try:
            best = msgspec.json.decode(text[:end] + closing)
            break
        except msgspec.DecodeError:
            continue
    return best


def _ends(text: str) -> list[tuple[int, str]]:
    """Places at which a value may have just ended, with what closes everything that is open there.

    The last few are enough: a cut leaves at most one value and its key unfinished.
    """
    ends: list[tuple[int, str]] = []
    open_: list[str] = []
    inside = escaped = False
    for at, character in enumerate(text):
        if inside:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
                ends.append((at + 1, "".join(reversed(open_))))
        elif character == '"':
            inside = True
        elif character in "{[":
            open_.append("}" if character == "{" else "]")
            ends.append((at + 1, "".join(reversed(open_))))
        elif character in "}]":
            if open_:
                open_.pop()
            ends.append((at + 1, "".join(reversed(open_))))
        elif character == ",":
            ends.append((at, "".join(reversed(open_))))
        del ends[:-8]
    if not inside:
        ends.append((len(text), "".join(reversed(open_))))
    return ends
