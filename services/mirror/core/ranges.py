"""What of a file a request asks for: RFC 9110, sections 13 and 14."""

from __future__ import annotations

import re
from typing import NamedTuple

_ONE_RANGE = re.compile(r"^bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*$", re.IGNORECASE)


class ByteRange(NamedTuple):
    """``length`` bytes of a file from ``start`` on."""

    start: int
    length: int


class Unsatisfiable(Exception):
    """Nothing of the file is in the range asked for."""


def byte_range(header: str | None, size: int) -> ByteRange | None:
    """The range asked for; None: the whole file.

    Several ranges and what cannot be read are ignored, as the RFC allows: the answer is then the whole file.
    Raises Unsatisfiable.
    """
    match = _ONE_RANGE.match(header) if header else None
    if match is None or (not match[1] and not match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        if length == 0:
            raise Unsatisfiable
        return ByteRange(size - length, length)
    start = int(match[1])
    end = int(match[2]) if match[2] else size - 1
    if match[2] and end < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return ByteRange(start, min(end, size - 1) - start + 1)


def matches_any(header: str | None, etag: str) -> bool:
    """``If-None-Match``: whether the asker has it already. Weak comparison."""
    if not header:
        return False
    return header.strip() == "*" or etag in (item.strip().removeprefix("W/") for item in header.split(","))


def still_the_same(header: str | None, etag: str) -> bool:
    """``If-Range``: whether a range may be sent. Strong comparison; a date never holds, since files have none."""
    return header is None or header.strip() == etag
