"""Whether the ledger has everything that comes before something in the stream.

Messages come again when whoever had them died, or when a connection broke, and then newer ones are entered before
them. Until they have been, the ledger is not complete up to those.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Watermark(msgspec.Struct, frozen=True):
    """What was dealt with of a stream, by sequence: the low watermark, and what is beyond it. The sequences of the
    stream have no gaps."""

    floor: int
    """Everything up to this sequence was dealt with."""
    highest: int
    """The highest sequence that was handed out."""
    ahead: frozenset[int] = frozenset()
    """Sequences beyond the floor that were dealt with too."""

    @property
    def complete(self) -> bool:
        """Whether nothing before the highest is missing."""
        return self.floor >= self.highest

    def after(self, sequences: Iterable[int]) -> Watermark:
        """With these dealt with too."""
        ahead = {*self.ahead, *sequences}
        floor, highest = self.floor, max(self.highest, max(ahead, default=0))
        while floor + 1 in ahead:
            floor += 1
        return Watermark(floor, highest, frozenset(sequence for sequence in ahead if sequence > floor))

    def at_least(self, floor: int) -> Watermark:
        """With the stream's own word that everything up to a sequence was dealt with, whoever did it."""
        return Watermark(max(floor, self.floor), self.highest, self.ahead).after(())
