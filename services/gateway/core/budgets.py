"""Hard budgets: what is spent, what is held here, what the other gateways hold, and what is left.

A request reserves the most it may cost before an engine is asked. When it ends, the reservation gives way to what
it cost, which is held until ``spend`` includes it: the ledger's watermark for this gateway says up to where in its
spool that is. So a cost is counted by the ledger or here, never by both and never by neither. Gateways tell each
other what they hold; of one that is silent only its reservations are dropped, for what it settled is in its spool
and will be in the ledger.

Money is in micro-units. Nothing here knows the time but what it is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from libs.events.budget import PERIODS, LevelBudget, Period, accounts, period_name
from libs.events.usage import Held
from libs.events.views import Spend

MOST_SETTLED = 512
"""Costs kept apart for an account and period. While the ledger is away for long, those that lie close in the spool
are joined: they then leave together, when it has the last of them."""
KEPT = 64
"""States of an account that are remembered, to tell which of them another gateway speaks of."""
MOST = 2**63
"""More than any sum."""
NEAR = 0.2
FEW = 8
"""With so little of a budget left (a share of it, or requests like the last) other gateways are told at once."""


class Short(NamedTuple):
    """A budget that does not have room for a request."""

    budget: LevelBudget
    left: int
    needed: int


class Reservation(NamedTuple):
    """What a request holds until it ends."""

    budgets: tuple[LevelBudget, ...]
    at: datetime
    micros: int
    near: bool
    """One of the budgets is nearly spent: the other gateways should hear of it at once."""


class Spending:
    """The budgets of all accounts, as one gateway knows them."""

    def __init__(self, gateway_id: str) -> None:
        self._gateway_id = gateway_id
        self._spend: dict[str, Spend] = {}
        self._lines: dict[str, dict[str, _Line]] = {}
        """By account, then by period."""
        self._others: dict[str, dict[str, _Heard]] = {}
        """Account and period to what each of the others holds."""
        self.counted_until: int | None = None
        """Position in this gateway's spool up to which the ledger has its requests; None: not known."""

    # requests

    def reserve(self, budgets: tuple[LevelBudget, ...], micros: int, at: datetime) -> Reservation | Short:
        """Take the most a request may cost out of every budget, or of none when one of them is too short."""
        near = False
        for budget in budgets:
            line = self._line(budget.account, period_name(budget.period, at))
            left = max(0, budget.amount_micros - self._used(line))
            if micros > left:
                return Short(budget, left, micros)
            near = near or left - micros < max(budget.amount_micros * NEAR, FEW * micros)
        self._take(budgets, at, micros)
        return Reservation(budgets, at, micros, near)

    def change(self, held: Reservation, micros: int) -> Reservation | Short:
        """Another amount instead of the one a request holds; where there is no room for it, it goes on holding that."""
        self._take(held.budgets, held.at, -held.micros)
        changed = self.reserve(held.budgets, micros, held.at)
        if isinstance(changed, Short):
            self._take(held.budgets, held.at, held.micros)
        return changed

    def settle(self, held: Reservation, micros: int, position: int, at: datetime) -> None:
        """The request ended at a time and cost so much; its record ends at a position of the spool."""
        self._take(held.budgets, held.at, -held.micros)
        if micros:
            for budget in held.budgets:
                self._line(budget.account, period_name(budget.period, at)).settle(position, micros)

    def _take(self, budgets: tuple[LevelBudget, ...], at: datetime, micros: int) -> None:
        for budget in budgets:
            self._line(budget.account, period_name(budget.period, at)).reserved += micros

    def remember(self, key_id: str, project: str, micros: int, position: int, at: datetime) -> None:
        """A request of this gateway that ended before it was started again, as its spool has it."""
        for account in accounts(key_id, project):
            if position > self._watermark(account):
                for period in PERIODS:
                    self._line(account, period_name(period, at)).settle(position, micros)

    # the ledger

    def counted(self, account: str, spend: Spend) -> None:
        """The ledger's word on an account: what it includes is held here no more."""
        known = self._spend.get(account)
        if known is not None and spend.counted < known.counted:
            return
        self._spend[account] = spend
        watermark = spend.watermarks.get(self._gateway_id)
        if watermark is not None:
            self.counted_until = max(watermark, self.counted_until or 0)
        for period, line in self._lines.get(account, {}).items():
            line.counted(spend.spent_micros.get(period, line.spent), spend, watermark or 0)

    # the other gateways

    def held(self, at: datetime) -> dict[str, Held]:
        """What this gateway holds, for the others. Lines of periods that are over and empty are forgotten."""
        current = {period_name(period, at) for period in PERIODS}
        report = {}
        for account, lines in list(self._lines.items()):
            for period, line in list(lines.items()):
                if line.reserved or line.settled_micros:
                    report[line.name] = Held(
                        reserved=line.reserved,
                        settled=line.settled_micros,
                        counted=line.state.version,
                        until=line.state.watermarks.get(self._gateway_id, 0),
                    )
                elif period not in current:
                    del lines[period]
            if not lines:
                del self._lines[account]
        for name in [name for name in self._others if name.rpartition(" ")[2] not in current]:
            del self._others[name]
        return report

    def heard(self, gateway_id: str, held: Mapping[str, Held]) -> None:
        """Another gateway's report replaces its last one."""
        for name in [name for name, by in self._others.items() if gateway_id in by and name not in held]:
            self._drop(name, gateway_id)
        for name, one in held.items():
            self._others.setdefault(name, {})[gateway_id] = _Heard(one)

    def silent(self, gateway_id: str) -> None:
        """It is gone, and with it what it was answering. What it settled will be in the ledger."""
        for name, by in list(self._others.items()):
            if (heard := by.get(gateway_id)) is not None:
                heard.reserved = 0
                if not heard.settled:
                    self._drop(name, gateway_id)

    def _drop(self, name: str, gateway_id: str) -> None:
        by = self._others[name]
        by.pop(gateway_id, None)
        if not by:
            del self._others[name]

    # sums

    def used(self, account: str, period: Period, at: datetime) -> int:
        """What is not left of a budget of this account, whatever its amount."""
        return self._used(self._line(account, period_name(period, at)))

    def _used(self, line: _Line) -> int:
        return line.spent + line.reserved + line.settled_micros + self._elsewhere(line)

    def _elsewhere(self, line: _Line) -> int:
        """What the others hold. What of it the ledger has meanwhile is left out: at most what its sum rose by, and
        nothing of a gateway whose watermark stands where it stood."""
        others = self._others.get(line.name)
        if not others:
            return 0
        total = entered = most = 0
        for gateway_id, heard in others.items():
            since = heard.since(line, gateway_id)
            total += heard.reserved + heard.settled
            entered += min(heard.settled, since)
            most = max(most, since)
        return total - min(entered, most)

    def _line(self, account: str, period: str) -> _Line:
        lines = self._lines.setdefault(account, {})
        line = lines.get(period)
        if line is None:
            spend = self._spend.get(account)
            line = lines[period] = _Line(f"{account} {period}", period, spend)
        return line

    def _watermark(self, account: str) -> int:
        spend = self._spend.get(account)
        return 0 if spend is None else spend.watermarks.get(self._gateway_id, 0)


class _State(NamedTuple):
    """What the ledger said of a line once."""

    version: int
    """``Spend.counted``"""
    foreign: int
    """What its sum had risen by since this line began, without what came from here."""
    watermarks: Mapping[str, int]


class _Line:
    """One account in one period."""

    __slots__ = ("_grain", "_settled", "_states", "name", "reserved", "settled_micros", "spent", "state")

    def __init__(self, name: str, period: str, spend: Spend | None) -> None:
        self.name = name
        self.spent = 0 if spend is None else spend.spent_micros.get(period, 0)
        """In the ledger."""
        self.state = _State(0, 0, {}) if spend is None else _State(spend.counted, 0, spend.watermarks)
        self.reserved = 0
        self.settled_micros = 0
        self._settled: deque[tuple[int, int]] = deque()
        """Position in the spool and cost, not in the ledger yet."""
        self._grain = 1
        """Costs that lie so close in the spool are one entry."""
        self._states = deque([self.state], maxlen=KEPT)

    def settle(self, position: int, micros: int) -> None:
        if not self._settled:
            self._grain = 1
        self.settled_micros += micros
        self._append(position, micros)
        while len(self._settled) > MOST_SETTLED:
            self._grain *= 2
            apart, self._settled = self._settled, deque()
            for one in apart:
                self._append(*one)

    def _append(self, position: int, micros: int) -> None:
        if self._settled and self._settled[-1][0] // self._grain == position // self._grain:
            micros += self._settled.pop()[1]
        self._settled.append((position, micros))

    def counted(self, spent: int, spend: Spend, watermark: int) -> None:
        entered = 0
        while self._settled and self._settled[0][0] <= watermark:
            entered += self._settled.popleft()[1]
        self.settled_micros -= entered
        foreign = self.state.foreign + max(0, spent - self.spent - entered)
        self.spent = spent
        self.state = _State(spend.counted, foreign, spend.watermarks)
        self._states.append(self.state)

    def foreign_at(self, version: int) -> int:
        """What was foreign at a version. Of one that is not remembered all that rose since may be foreign to it."""
        found = -MOST
        for state in self._states:
            if state.version > version:
                break
            found = state.foreign
        return found


class _Heard:
    """What another gateway said of a line."""

    __slots__ = ("_base", "_until", "_version", "reserved", "settled")

    def __init__(self, held: Held) -> None:
        self.reserved = held.reserved
        self.settled = held.settled
        self._version = held.counted
        self._until = held.until
        self._base: int | None = None

    def since(self, line: _Line, gateway_id: str) -> int:
        """The most the ledger can have of this since it was said: what others than we had entered since."""
        now = line.state
        if now.version < self._version or now.watermarks.get(gateway_id, 0) <= self._until:
            return 0
        if self._base is None:
            self._base = line.foreign_at(self._version)
        return now.foreign - self._base
