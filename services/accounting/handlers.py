"""Questions accounting answers."""

from __future__ import annotations

from datetime import UTC, datetime

from libs.bus import Authority
from libs.events.budget import level_of, period_name
from libs.events.questions import (
    AskUsage,
    BudgetRow,
    BudgetsAnswer,
    ExamineAccounting,
    Examined,
    KeyInfo,
    ListBudgets,
    ListTenancy,
    TenancyAnswer,
    UsageAnswer,
)
from libs.events.refusal import Refused

from .adapters.postgres import NAMES, Ledger, PostgresAway
from .core.effective import every_budget
from .core.prices import newest
from .core.state import State


class Answers:
    """Reads only: the tree from the log's state, usage from the ledger. Any instance answers."""

    def __init__(self, authority: Authority[State], ledger: Ledger) -> None:
        self._authority = authority
        self._ledger = ledger

    async def examine(self, question: ExamineAccounting) -> Examined:
        return self._authority.examine(question)

    async def tenancy(self, _question: ListTenancy) -> TenancyAnswer:
        state = self._authority.state
        return TenancyAnswer(
            orgs=tuple(state.orgs[name] for name in sorted(state.orgs)),
            teams=tuple(state.teams[name] for name in sorted(state.teams)),
            projects=tuple(state.projects[name] for name in sorted(state.projects)),
            keys=tuple(
                KeyInfo(
                    key_id=key.key_id,
                    shown=key.shown,
                    name=key.name,
                    project=key.project,
                    roles=key.roles,
                    allowance=key.allowance,
                    expires_at=key.expires_at,
                    revoked=key.revoked,
                )
                for key in state.keys.values()
            ),
            prices=tuple(newest(state.prices)),
        )

    async def budgets(self, _question: ListBudgets) -> BudgetsAnswer:
        now = datetime.now(UTC)
        budgets = every_budget(self._authority.state)
        try:
            spend = await self._ledger.spend(now, {budget.account for budget in budgets})
        except PostgresAway as why:
            raise Refused.one("", f"the ledger cannot be read, PostgreSQL is away ({why}); ask again") from None
        spent = {one.key_id: one.spent_micros for one in spend}
        rows = []
        for budget in budgets:
            period = period_name(budget.period, now)
            rows.append(
                BudgetRow(
                    level=level_of(budget.account),
                    period=period,
                    amount_micros=budget.amount_micros,
                    spent_micros=spent.get(budget.account, {}).get(period, 0),
                )
            )
        rows.sort(key=lambda row: row.spent_micros / row.amount_micros, reverse=True)
        return BudgetsAnswer(rows=tuple(rows))

    async def usage(self, question: AskUsage) -> UsageAnswer:
        if question.by not in NAMES:
            raise Refused.one("by", f"usage cannot be asked by {question.by!r}; ask by one of {', '.join(NAMES)}")
        since, until = _utc(question.since), _utc(question.until)
        if since is not None and until is not None and since >= until:
            raise Refused.one("until", f"{until.isoformat()} is not after {since.isoformat()}: nothing lies between")
        try:
            # Read before the rows: what they hold is then never less than the watermarks say.
            counted_until = await self._ledger.watermarks()
            rows = await self._ledger.usage(question.by, since, until)
        except PostgresAway as why:
            raise Refused.one("", f"the ledger cannot be read, PostgreSQL is away ({why}); ask again") from None
        return UsageAnswer(rows=tuple(rows), counted_until=counted_until)


def _utc(at: datetime | None) -> datetime | None:
    """A time without a zone is UTC."""
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at
