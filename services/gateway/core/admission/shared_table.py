"""What the workers of one host hold and count, in memory they share: none of them needs the bus to know it.

Every worker has a table that it alone writes, and reads those of the others; nothing is ever locked, so that a worker
that is frozen or dead holds nobody up, and what it had said stands. A row is found by the digest of its name (open
addressing) and is eight words of 64 bits. What a reader must not miss is written before what it replaces is taken
away, and read the other way round: a sum that is read while it changes is at most too high.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

ROWS = 2**17
WORDS = 8
HEADER = WORDS
"""Words before the first row: which start of the machine it is of, and how often a row was taken."""
TAKEN = 1
LENGTH = HEADER + ROWS * WORDS
"""Words of a table of so many rows."""
PROBES = 1024
"""Places a name's row may be at, one after the other."""
KEPT_S = 900
"""The row of a budget of which nothing is held is another name's to take after so long: what the ledger said stands in
it for a worker that stood still."""
MINUTE_S = 61
"""So long a limit's row matters: a minute and the second being filled."""

# Words of every row.
NAME, AT = 0, 1
# Of a limit's row: what was counted in the minute before AT, and of that what other hosts may not have heard.
REQUESTS, TOKENS, NEW_REQUESTS, NEW_TOKENS = 2, 3, 4, 5
# Of a budget's row: see ``libs.events.usage.Holding``; TOLD is what other hosts heard of RESERVED and SETTLED.
RESERVED, SETTLED, UNTIL, LEDGER, SPENT, TOLD = 2, 3, 4, 5, 6, 7
A_LIMIT = -1
"""In the place of TOLD, of a limit's row."""


class TableFull(Exception):
    """More names are in use than the table has rows near where theirs would be."""


def digest(name: str) -> int:
    """Never 0, which is an empty row's."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1 or 1


class Table:
    """A worker's own table, ``words``, and those of the ``others`` of its host, which it reads: memory as long."""

    def __init__(self, words: memoryview, others: Sequence[memoryview] = ()) -> None:
        self.words = words
        self.others = others
        self._length = len(words)
        self._rows = (len(words) - HEADER) // WORDS
        self.now = 0
        """Seconds; kept up to date by whoever owns it."""

    def row(self, name: int) -> int:
        """Where this worker's row of a name begins; its old words are there, or zeros. Raises TableFull."""
        words = self.words
        place = free = -1
        at = HEADER + name % self._rows * WORDS
        for _ in range(PROBES):
            name_there = words[at]
            if name_there == name:
                place = at
                break
            if free < 0 and (not name_there or self._is_left(at)):
                free = at
            if not name_there:
                break
            at += WORDS
            if at == self._length:
                at = HEADER
        if place < 0:
            if free < 0:
                raise TableFull
            words[TAKEN] += 1
            words[free + AT] = self.now
            for word in range(AT + 1, WORDS):
                words[free + word] = 0
            words[free] = name
            place = free
        return place

    def _is_left(self, at: int) -> bool:
        """Whether it says nothing any more."""
        words = self.words
        if words[at + TOLD] == A_LIMIT:
            return words[at + AT] < self.now - MINUTE_S
        return not words[at + RESERVED] and not words[at + SETTLED] and words[at + AT] < self.now - KEPT_S

    def rows_of_others(self, name: int) -> list[tuple[memoryview, int]]:
        """The rows the other workers have of a name."""
        rows = []
        for words in self.others:
            at = HEADER + name % self._rows * WORDS
            for _ in range(PROBES):
                name_there = words[at]
                if name_there == name:
                    rows.append((words, at))
                    break
                if not name_there:
                    break
                at += WORDS
                if at == self._length:
                    at = HEADER
        return rows

    def rows(self) -> Iterator[int]:
        """Where this worker's rows begin, of all names it ever had."""
        words = self.words
        if not words[TAKEN]:
            return iter(())  # looking at every row has all of its memory used
        return (at for at in range(HEADER, self._length, WORDS) if words[at])
