"""What an account has spent, as published."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from libs.events.budget import PERIODS, period_name
from libs.events.views import Spend

CLOCKS_APART = timedelta(hours=1)
"""Periods that held so long ago, or will so soon, are published too: a gateway's clock may be in one of them."""


KEPT_DAYS = 35
"""Sums of a period are kept so long after it ended: requests of it come no later. What they were made of stays."""
ENDED_DAYS = 10 * 366
"""So far back ended periods are looked for."""


class Sum(NamedTuple):
    """One row of ``llmgw.spend``: an account in a period."""

    account: str
    period: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost_micros: int


def periods_at(at: datetime) -> list[str]:
    """The names of the periods that hold at a time, or nearly."""
    moments = (at - CLOCKS_APART, at, at + CLOCKS_APART)
    return sorted({period_name(period, moment) for period in PERIODS for moment in moments})


def ended_at(at: datetime) -> list[str]:
    """The names of the periods that ended so long before a time that nobody asks for their sums any more."""
    days = [at - timedelta(days=number) for number in range(KEPT_DAYS, KEPT_DAYS + ENDED_DAYS)]
    kept = {period_name(period, at - timedelta(days=number)) for period in PERIODS for number in range(KEPT_DAYS)}
    return sorted({period_name(period, day) for period in PERIODS for day in days} - kept)


class Complete(NamedTuple):
    """Up to where the ledger has everything."""

    sequence: int
    """In USAGE."""
    epoch: str
    """Which history of the stream it is; see ``Origin``."""


def published(sums: Iterable[Sum], at: datetime, complete: Complete) -> list[Spend]:
    """What is said of the accounts whose sums of ``periods_at(at)`` are given."""
    by_account: dict[str, dict[str, Sum]] = {}
    for sum_ in sums:
        by_account.setdefault(sum_.account, {})[sum_.period] = sum_
    month = period_of(at)
    spend = []
    for account, by_period in sorted(by_account.items()):
        of_month = by_period.get(month) or Sum(account, month, 0, 0, 0, 0)
        spend.append(
            Spend(
                key_id=account,
                period=month,
                requests=of_month.requests,
                prompt_tokens=of_month.prompt_tokens,
                completion_tokens=of_month.completion_tokens,
                cost_micros=of_month.cost_micros,
                ledger=complete.sequence,
                epoch=complete.epoch,
                spent_micros={period: sum_.cost_micros for period, sum_ in sorted(by_period.items())},
                counted=by_period["total"].requests,
            )
        )
    return spend


def sums_of(published_before: Iterable[Spend]) -> list[Sum]:
    """The sums that make accounts what was said of them. Of periods other than its month and ``total`` an entry says
    only what they cost."""
    sums = []
    for spend in published_before:
        for period, cost_micros in sorted(spend.spent_micros.items()):
            requests, prompt, completion = 0, 0, 0
            if period == spend.period:
                requests, prompt, completion = spend.requests, spend.prompt_tokens, spend.completion_tokens
            elif period == "total":
                requests = spend.counted
            sums.append(Sum(spend.key_id, period, requests, prompt, completion, cost_micros))
    return sums


def holds(spend: Spend, at: datetime) -> bool:
    """Whether what was said of an account speaks of a period that holds at a time, beside ``total``."""
    return not spend.spent_micros.keys().isdisjoint(set(periods_at(at)) - {"total"})


def period_of(at: datetime) -> str:
    """The UTC month a time lies in: ``2026-11``."""
    return period_name("month", at.astimezone(UTC))


def rises(written: Spend | None, new: Spend) -> bool:
    """Whether ``new`` is news. Every request that is added to the ledger raises the count, so an older sum never
    replaces a newer one, in whatever order they come. In another stream the sequences begin anew."""
    return written is None or new.counted > written.counted or new.epoch != written.epoch
