"""The time of day."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Now, in UTC and saying so."""
    return datetime.now(UTC)
