"""Which stretch of a spool became which message of USAGE: how what the ledger has is told from what it has not.

The ledger says one number, the sequence in USAGE up to which it is complete; a spool counts in positions. Between the
two stand the acknowledgements of the stream, one for each stretch that was published.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

MAX_MARKS = 4096
"""Stretches kept apart. Where the ledger is away for longer than that, the oldest are joined: they count as taken in
when the last of them is."""


class Marks:
    """The stretches of one spool that are in USAGE, as they lie in both: positions and sequences rise together."""

    def __init__(self) -> None:
        self.epoch = ""
        """Of the stream the sequences are of; empty: not known."""
        self._ends: list[int] = []
        self._sequences: list[int] = []

    def add(self, end: int, sequence: int) -> None:
        """The stretch up to a position is, or had been, the message with a sequence."""
        if self._ends and end <= self._ends[-1]:
            return
        # A stretch sent again may be told the sequence it had the first time.
        self._ends.append(end)
        self._sequences.append(max(sequence, self._sequences[-1] if self._sequences else 0))
        if len(self._ends) > MAX_MARKS:
            # Every second of the older half: the remaining ones stand for both.
            del self._ends[: MAX_MARKS // 2 : 2], self._sequences[: MAX_MARKS // 2 : 2]

    @property
    def end(self) -> int:
        """Behind the last stretch; 0: there is none."""
        return self._ends[-1] if self._ends else 0

    def position(self, sequence: int) -> int:
        """Up to where in the spool everything is in USAGE at or before a sequence; 0: nothing is."""
        index = bisect_right(self._sequences, sequence)
        return self._ends[index - 1] if index else 0

    def sequence(self, position: int) -> int:
        """Of the message that holds what ends at a position; 0: it is in none yet."""
        index = bisect_left(self._ends, position)
        return self._sequences[index] if index < len(self._sequences) else 0

    def begin(self, epoch: str) -> None:
        """Another stream: what was said of the former one means nothing in it."""
        self.epoch = epoch
        self._ends.clear()
        self._sequences.clear()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._ends, self._sequences, strict=True))
