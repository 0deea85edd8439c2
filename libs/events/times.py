"""Times as they are written for people: as in JSON, without fractions of a second."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(at: datetime) -> str:
    """``2026-11-29T14:03:20Z``, in UTC. ``at`` knows its time zone."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"
