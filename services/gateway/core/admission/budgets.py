"""Hard budgets: what is spent, what is held here, beside us and elsewhere, and what is left.

A request reserves the most it may cost before an engine is asked. When it ends, the reservation gives way to what
it cost, which is held until ``spend`` includes it: the ledger says up to which sequence of USAGE it is complete, and
the spool knows which of its stretches became which sequence. So a cost is counted by the ledger or by who holds it,
never by both and never by neither.

The workers of a host see what each holds in the table they share; gateways of other hosts say it over the bus. What
those have not heard yet may be at most an equal share of what is left, so that gateways that do not hear of each other
spend together no more than there is.

Money is in micro-units. Nothing here knows the time but what it is told.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from libs.events.budget import (
    PERIODS,
    LevelBudget,
    Period,
    accounts,
    period_name,
)
from libs.events.usage import Holding, Holdings
from services.gateway.core.usage.spool_marks import Marks

from .budget_line import BudgetLine
from .other_hosts import (
    WORDS,
    OtherHosts,
    fits,
    short,
)
from .shared_table import (
    A_LIMIT,
    AT,
    LEDGER,
    RESERVED,
    SETTLED,
    SPENT,
    TOLD,
    UNTIL,
    Table,
    TableFull,
)

NEAR = 0.2
FEW = 8
"""With so little of a budget left (a share of it, or requests like the last) other hosts are told at once."""
_packed = msgspec.msgpack.Encoder().encode
_words = msgspec.msgpack.Decoder(list[int]).decode


class Shortfall(NamedTuple):
    """A budget that does not have room for a request."""

    budget: LevelBudget
    left: int
    """For this host."""
    needed: int


class Reservation(NamedTuple):
    """What a request holds until it ends."""

    budgets: tuple[LevelBudget, ...]
    lines: tuple[BudgetLine, ...]
    """Of each of them, the account's in its period."""
    at: datetime
    micros: int
    near: bool
    """One of the budgets is nearly spent: the other hosts should hear of it at once."""


class _Sum(NamedTuple):
    """What is not left of a budget."""

    used: int
    new: int
    """Of this host's, and other hosts may not have heard it."""


class Spending:
    """The budgets of all accounts, as one worker knows them."""

    def __init__(self, table: Table, other_hosts: OtherHosts, marks: Marks) -> None:
        self._table = table
        self._other_hosts = other_hosts
        self._marks = marks
        self._spend: dict[str, bytes] = {}
        """By account what the ledger said last: up to where it is complete, then period and sum by turns. There may be
        very many, and few are used at a time."""
        self._periods: dict[str, int] = {}
        """Names of periods to the numbers they go by in that."""
        self._lines: dict[str, dict[str, BudgetLine]] = {}
        """By account, then by period."""
        self._shown = False
        """Whether the host's other workers see what is counted here."""

    # requests

    def reserve(self, budgets: tuple[LevelBudget, ...], micros: int, at: datetime) -> Reservation | Shortfall:
        """Take the most a request may cost out of every budget, or of none when one of them is too short.

        Raises TableFull."""
        lines = tuple([self._line(budget.account, period_name(budget.period, at)) for budget in budgets])
        for line in lines:
            if (row := line.place(self._table)) < 0:
                raise TableFull
            self._table.words[row + AT] = self._table.now  # so that none of the others is given its row
        return self._reserve(budgets, lines, micros, at)

    def _reserve(
        self,
        budgets: tuple[LevelBudget, ...],
        lines: tuple[BudgetLine, ...],
        micros: int,
        at: datetime,
        before: int = 0,
    ) -> Reservation | Shortfall:
        # Taken before it is looked at: of two workers that do it at once at least one sees both.
        self._add_reserved(lines, micros - before)
        near = False
        hosts = self._other_hosts.hosts
        for budget, line in zip(budgets, lines, strict=True):
            used, new = self._sum(line)
            left = budget.amount_micros - used
            share = (left + new) // hosts
            if micros and not fits(left, new, micros, hosts):
                self._add_reserved(lines, before - micros)
                return Shortfall(budget, max(0, min(left, share - new) + micros), micros)
            if hosts > 1:
                near = near or left < max(budget.amount_micros * NEAR, FEW * micros) or 2 * new > share
        return Reservation(budgets, lines, at, micros, near)

    def change(self, held: Reservation, micros: int) -> Reservation | Shortfall:
        """Another amount instead of the one a request holds; where there is no room for it, it goes on holding that."""
        return self._reserve(held.budgets, held.lines, micros, held.at, before=held.micros)

    def settle(self, held: Reservation, micros: int, position: int, at: datetime) -> None:
        """The request ended at a time and cost so much; its record ends at a position of the spool."""
        if micros:
            for budget in held.budgets:
                line = self._line(budget.account, period_name(budget.period, at))
                line.settle(position, micros)
                line.changed = True
                if (row := line.place(self._table)) >= 0:
                    words = self._table.words
                    words[row + AT] = self._table.now
                    words[row + UNTIL] = 0  # it is in no message of USAGE yet
                    words[row + SETTLED] = line.settled_micros
        self._add_reserved(held.lines, -held.micros)

    def _add_reserved(self, lines: tuple[BudgetLine, ...], micros: int) -> None:
        if not micros:
            return
        words = self._table.words
        for line in lines:
            line.reserved += micros
            line.changed = True
            if line.row >= 0:
                words[line.row + RESERVED] = line.reserved

    # beginning

    def remember(
        self,
        key_id: str,
        project: str,
        micros: int,
        position: int,
        at: datetime,
        budgeted: Container[tuple[str, Period]],
    ) -> None:
        """A request of this gateway that ended before it was started again, as its spool has it. Only budgets that
        there are concern it: account and period."""
        for account in accounts(key_id, project):
            if position > self._marks.position(self._ledger(account)):
                for period in PERIODS:
                    if (account, period) in budgeted:
                        self._line(account, period_name(period, at)).settle(position, micros)

    def begin(self) -> None:
        """Show the host's other workers what is counted here, in the place of what this worker's former life held:
        how its requests ended is remembered by now."""
        self._shown = True
        kept = set()
        for lines in self._lines.values():
            for line in lines.values():
                self._show(line)
                if (row := line.place(self._table)) >= 0:
                    self._table.words[row + RESERVED] = line.reserved
                    kept.add(row)
        words = self._table.words
        for row in self._table.rows():
            if words[row + TOLD] != A_LIMIT and row not in kept:
                words[row + RESERVED] = words[row + SETTLED] = 0

    # the ledger

    def counted(self, account: str, ledger: int, spent_micros: Mapping[str, int]) -> None:
        """The ledger's word on an account: complete up to a sequence of USAGE, it says what was spent in each period.
        What it includes is held here no more."""
        if ledger < self._ledger(account):
            return
        words = [ledger]
        for period, micros in spent_micros.items():
            words += self._periods.setdefault(period, len(self._periods)), micros
        self._spend[account] = _packed(words)
        for period, line in self._lines.get(account, {}).items():
            self._entered(line, ledger, spent_micros.get(period, line.spent))

    def begin_epoch(self) -> None:
        """USAGE is another stream: what was said of sequences holds no more, and nothing is in it yet."""
        for account, spend in self._spend.items():
            self._spend[account] = _packed([0, *_words(spend)[1:]])
        for lines in self._lines.values():
            for line in lines.values():
                line.ledger = 0
        words = self._table.words
        for row in self._table.rows():
            if words[row + TOLD] != A_LIMIT:
                words[row + LEDGER] = words[row + UNTIL] = 0

    def _entered(self, line: BudgetLine, ledger: int, spent: int) -> None:
        if ledger < line.ledger:
            return
        line.ledger, line.spent = ledger, spent
        if self._shown and (row := line.place(self._table)) >= 0:
            words = self._table.words
            words[row + SPENT], words[row + LEDGER] = spent, ledger
        before = line.settled_micros
        line.entered(self._marks.position(ledger))
        line.told = max(0, line.told - (before - line.settled_micros))
        self._show(line)

    def _ledger(self, account: str) -> int:
        spend = self._spend.get(account)
        return 0 if spend is None else _words(spend)[0]

    # the gateways of other hosts

    def all(self) -> dict[str, Holding]:
        """What this worker holds, for other hosts. Lines of nothing are forgotten once they were told."""
        report = {}
        for account, lines in list(self._lines.items()):
            for period, line in list(lines.items()):
                if line.reserved or line.settled_micros or line.changed:
                    report[line.name] = self._holding(line)
                elif not line.told:
                    del lines[period]
            if not lines:
                del self._lines[account]
        return report

    def changes(self) -> dict[str, Holding]:
        """Of that, what was not told since it changed."""
        return {
            line.name: self._holding(line) for lines in self._lines.values() for line in lines.values() if line.changed
        }

    def _holding(self, line: BudgetLine) -> Holding:
        line.changed = False
        # From now on others may believe that it is no more than this.
        self._heard(line, line.told)
        return Holding(
            reserved=line.reserved,
            settled=line.settled_micros,
            until=self._marks.sequence(line.last),
            ledger=line.ledger,
            spent=line.spent,
        )

    def told(self, held: Mapping[str, int]) -> None:
        """Other hosts know that so much is held, by account and period."""
        for name, micros in held.items():
            account, _, period = name.rpartition(" ")
            line = self._lines.get(account, {}).get(period)
            if line is not None:
                self._heard(line, micros)

    def _heard(self, line: BudgetLine, micros: int) -> None:
        line.told = min(micros, line.reserved + line.settled_micros)
        if self._shown and (row := line.place(self._table)) >= 0:
            self._table.words[row + TOLD] = line.told

    def heard(self, message: Holdings) -> None:
        """A gateway of another host may know of the ledger what is not known here yet."""
        if message.epoch != self._marks.epoch:
            return  # of USAGE as it was before, or will be: sequences cannot be compared
        for name, held in message.budgets.items():
            if held.ledger:
                account, _, period = name.rpartition(" ")
                line = self._lines.get(account, {}).get(period)
                if line is not None and held.ledger > line.ledger:
                    self._entered(line, held.ledger, held.spent)

    # sums

    def used(self, account: str, period: Period, at: datetime) -> int:
        """What is not left of a budget of this account, whatever its amount."""
        return self._sum(self._line(account, period_name(period, at))).used

    def _sum(self, line: BudgetLine) -> _Sum:
        spent, ledger = line.spent, line.ledger
        own = line.reserved + line.settled_micros
        held, new = own, max(0, own - line.told)
        for words, row in self._table.rows_of_others(line.digest):
            # Read in the other order than it is written in.
            reserved, settled, until = words[row + RESERVED], words[row + SETTLED], words[row + UNTIL]
            theirs, sum_ = words[row + LEDGER], words[row + SPENT]
            if theirs > ledger:
                spent, ledger = sum_, theirs
            if until and until <= ledger:
                settled = 0
            held += reserved + settled
            new += max(0, reserved + settled - words[row + TOLD])
        return _Sum(spent + held + self._elsewhere(line, ledger), new)

    def _elsewhere(self, line: BudgetLine, ledger: int) -> int:
        holdings = self._other_hosts.holdings
        if not holdings:
            return 0
        if line.elsewhere_at != (holdings.version, ledger):
            records = holdings.of(short(line.name))
            total = 0
            for at in range(0, len(records), WORDS):
                until = records[at + 3]
                total += records[at + 1] + (0 if until and until <= ledger else records[at + 2])
            line.elsewhere, line.elsewhere_at = total, (holdings.version, ledger)
        return line.elsewhere

    def _line(self, account: str, period: str) -> BudgetLine:
        lines = self._lines.setdefault(account, {})
        line = lines.get(period)
        if line is None:
            line = lines[period] = BudgetLine(f"{account} {period}")
            spend = self._spend.get(account)
            number = self._periods.get(period)
            if spend is not None:
                words = _words(spend)
                line.ledger = words[0]
                for at in range(1, len(words), 2):
                    if words[at] == number:
                        line.spent = words[at + 1]
            if self._shown:
                self._show(line)
        return line

    def _show(self, line: BudgetLine) -> None:
        """Let the host's other workers see what is settled, and the ledger's sum before it."""
        line.changed = True
        if not self._shown or (row := line.place(self._table)) < 0:
            return
        words = self._table.words
        words[row + AT] = self._table.now
        words[row + SPENT], words[row + LEDGER] = line.spent, line.ledger
        until = self._marks.sequence(line.last)
        if not until:
            words[row + UNTIL] = 0
        words[row + SETTLED] = line.settled_micros
        words[row + UNTIL] = until
        words[row + TOLD] = line.told
