"""A text in the two ways it is measured: bytes (what RE2 counts) and code points (what edits count)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property


class Text:
    """One segment's text. ``data`` is its UTF-8; a lone surrogate counts as one replaced character."""

    def __init__(self, text: str) -> None:
        self.data = text.encode("utf-8", "replace")
        self._plain = len(self.data) == len(text)

    @classmethod
    def of(cls, data: bytes) -> Text:
        """A text by its UTF-8."""
        text = cls.__new__(cls)
        text.data = data
        text._plain = data.isascii()
        return text

    @cached_property
    def lowered(self) -> bytes:
        """``data`` with ASCII letters in lower case; offsets stay the same."""
        return self.data.lower()

    def points(self, offsets: Iterable[int]) -> dict[int, int]:
        """Byte offset to code points before it, in one pass over the text. Offsets stand between characters."""
        if self._plain:
            return {offset: offset for offset in offsets}
        points: dict[int, int] = {}
        at = count = 0
        for offset in sorted(set(offsets)):
            count += len(self.data[at:offset].decode())
            points[offset] = count
            at = offset
        return points
