"""What one worker holds of one account in one period."""

from __future__ import annotations

from .shared_table import Table, TableFull, digest

MAX_SETTLED = 512
"""Costs kept apart for an account and period. While the ledger is away for long, those that lie close in the spool
are joined: they then leave together, when it has the last of them."""


class BudgetLine:
    """One account in one period."""

    __slots__ = (
        *(
            "_grain",
            "row",
            "_settled",
            "changed",
            "digest",
            "elsewhere",
            "elsewhere_at",
            "last",
            "ledger",
            "name",
            "reserved",
        ),
        *("settled_micros", "spent", "told"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.digest = digest(name)
        self.row = -1
        self.spent = 0
        """In the ledger."""
        self.ledger = 0
        """Up to where that one is complete."""
        self.reserved = 0
        self.settled_micros = 0
        self.last = 0
        """Where in the spool the last of what is settled ends."""
        self.told = 0
        """Of what is reserved and settled, what other hosts heard."""
        self.changed = False
        """They were not told since."""
        self.elsewhere = 0
        self.elsewhere_at: tuple[int, int] | None = None
        """Of which version of what other hosts say, and of which ledger, that is the sum."""
        self._settled: list[int] | None = None
        """Position in the spool and cost by turns, of what is not in the ledger yet."""
        self._grain = 1
        """Costs that lie so close in the spool are one entry."""

    def place(self, table: Table) -> int:
        """Where its row is: one that said nothing for long may have become another name's. -1: there is no room."""
        if self.row < 0 or table.words[self.row] != self.digest:
            try:
                self.row = table.row(self.digest)
            except TableFull:
                self.row = -1
        return self.row

    def settle(self, position: int, micros: int) -> None:
        """A request cost so many micros; its usage ends at ``position`` in the spool."""
        if self._settled is None:
            self._settled = []
            self._grain = 1
        self.settled_micros += micros
        self.last = max(self.last, position)
        self._append(self._settled, position, micros)
        while len(self._settled) > 2 * MAX_SETTLED:
            self._grain *= 2
            apart, self._settled = self._settled, []
            for at in range(0, len(apart), 2):
                self._append(self._settled, apart[at], apart[at + 1])

    def _append(self, settled: list[int], position: int, micros: int) -> None:
        if settled and settled[-2] // self._grain == position // self._grain:
            settled[-2] = position
            settled[-1] += micros
        else:
            settled += (position, micros)

    def entered(self, position: int) -> None:
        """The ledger has what ends in the spool up to there."""
        settled = self._settled or []
        gone = 0
        while gone < len(settled) and settled[gone] <= position:
            self.settled_micros -= settled[gone + 1]
            gone += 2
        if gone == len(settled):
            self._settled = None
        else:
            del settled[:gone]
