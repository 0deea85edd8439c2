"""Budgets: how much may be spent, by whom, until when; and what a request costs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Literal

from .contract import Value

Period = Literal["day", "week", "month", "total"]
PERIODS: tuple[Period, ...] = ("day", "week", "month", "total")
MICROS = 1_000_000
"""Micro-units in one unit of the cluster's currency."""


class Budget(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be spent in a period. It is hard: over it requests are refused."""

    amount_micros: int
    """Micro-units of the cluster's currency."""
    period: Period
    """Days, weeks (from Monday) and months turn at midnight UTC; ``total`` never does."""

    def __str__(self) -> str:
        return f"{money(self.amount_micros)}/{self.period}"


class LevelBudget(Value, frozen=True, kw_only=True):
    """A budget with the account it is charged to."""

    account: str
    """One of ``accounts``."""
    amount_micros: int
    period: Period


def money(micros: int) -> str:
    """An amount in units of currency: ``0.0125``."""
    sign, micros = "-" if micros < 0 else "", abs(micros)
    return f"{sign}{micros // MICROS}.{micros % MICROS:06}".rstrip("0").rstrip(".")


def accounts(key_id: str, project: str) -> tuple[str, str, str, str]:
    """The accounts a request is charged to, by what ``spend`` calls them: its key, project, team and organisation.

    ``("k-01j9", "acme/research/chat", "acme/research/*", "acme/*")``
    """
    org, _, rest = project.partition("/")
    team = rest.partition("/")[0]
    return key_id, project, f"{org}/{team}/*", f"{org}/*"


def level_of(account: str) -> str:
    """An account in words: ``project acme/research/chat``."""
    path = account.removesuffix("/*")
    if path == account:
        return f"project {account}" if "/" in account else f"key {account}"
    return f"team {path}" if "/" in path else f"organisation {path}"


def period_name(period: Period, at: datetime) -> str:
    """The period of a kind a time lies in: ``2026-11-29``, ``2026-W48``, ``2026-11``, ``total``."""
    return _name(period, at.astimezone(UTC).date())


@lru_cache(maxsize=64)
def _name(period: Period, day: date) -> str:
    match period:
        case "day":
            return day.isoformat()
        case "week":
            year, week, _ = day.isocalendar()
            return f"{year}-W{week:02}"
        case "month":
            return day.isoformat()[:7]
        case "total":
            return "total"
