"""Questions, answered from this instance's own state and the ledger, whether it leads or stands by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from libs.events import Question
from libs.events.budget import level_of, period_name
from libs.events.questions import (
    AskUsage,
    BudgetRow,
    BudgetsAnswer,
    ListBudgets,
    ListTenancy,
    TenancyAnswer,
    UsageAnswer,
)
from libs.events.refusal import Refused
from libs.events.times import rfc3339

from .adapters.postgres import NAMES, Ledger, PostgresAway
from .core.pages import PageCursor, budgets_page, tenancy_page
from .core.state import State

MAX_ROWS = 5_000
"""Of an answer: with the longest names it stays below what the bus takes."""


class Questions:
    """Reads only: the tree from the log's state, usage from the ledger."""

    def __init__(self, state: Callable[[], State], ledger: Ledger) -> None:
        self._state = state
        self._ledger = ledger

    def handlers(self) -> Mapping[type[Question], Callable[[Any], Awaitable[Any]]]:
        """Kind of question to who answers it."""
        return {ListTenancy: self.tenancy, AskUsage: self.usage, ListBudgets: self.budgets}

    async def tenancy(self, question: ListTenancy) -> TenancyAnswer:
        """A page of organisations, teams, projects and keys. Raises Refused."""
        return tenancy_page(self._state(), question.of, question.key_ids, _cursor(question.after))

    async def budgets(self, question: ListBudgets) -> BudgetsAnswer:
        """A page of budgets and what is spent of each. Raises Refused, also while PostgreSQL is away."""
        now = datetime.now(UTC)
        budgets, following = budgets_page(self._state(), _cursor(question.after), MAX_ROWS)
        try:
            sums = await self._ledger.sums(now, {budget.account for budget in budgets}) if budgets else ()
        except PostgresAway as why:
            raise Refused.one("", f"the ledger cannot be read, PostgreSQL is away ({why}); ask again") from None
        spent = {(total.account, total.period): total.cost_micros for total in sums}
        rows = []
        for budget in budgets:
            period = period_name(budget.period, now)
            rows.append(
                BudgetRow(
                    level=level_of(budget.account),
                    period=period,
                    amount_micros=budget.amount_micros,
                    spent_micros=spent.get((budget.account, period), 0),
                )
            )
        return BudgetsAnswer(rows=tuple(rows), next=following)

    async def usage(self, question: AskUsage) -> UsageAnswer:
        """A page of what was used. Raises Refused, also while PostgreSQL is away."""
        if question.by not in NAMES:
            raise Refused.one("by", f"usage cannot be asked by {question.by!r}; ask by one of {', '.join(NAMES)}")
        since, until = _utc(question.since), _utc(question.until)
        if since is not None and until is not None and since >= until:
            raise Refused.one("until", f"{rfc3339(until)} is not after {rfc3339(since)}: nothing lies between")
        try:
            rows = await self._ledger.usage(question.by, since, until, question.after, MAX_ROWS)
        except PostgresAway as why:
            raise Refused.one("", f"the ledger cannot be read, PostgreSQL is away ({why}); ask again") from None
        following = rows[-1].name if len(rows) == MAX_ROWS else ""
        return UsageAnswer(rows=tuple(rows), next=following)


def _cursor(after: str) -> PageCursor | None:
    """Raises Refused."""
    cursor = PageCursor.of(after)
    if after and cursor is None:
        raise Refused.one("after", f"{after!r} is not where a page ends: say what the page before this one calls next")
    return cursor


def _utc(at: datetime | None) -> datetime | None:
    """A time without a zone is UTC."""
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at
