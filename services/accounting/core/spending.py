"""What a key has spent in a month, as published."""

from __future__ import annotations

from datetime import UTC, datetime

from libs.events.views import Spend


def period_of(at: datetime) -> str:
    """The UTC month a time lies in: ``2026-11``."""
    return at.astimezone(UTC).strftime("%Y-%m")


def rises(written: Spend | None, new: Spend) -> bool:
    """Whether ``new`` is news: a later month, or more requests in the same. Every request that is added to the
    ledger raises the count, so an older sum never replaces a newer one, in whatever order they come."""
    return written is None or (new.period, new.requests) > (written.period, written.requests)
