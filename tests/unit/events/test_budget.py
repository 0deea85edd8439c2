"""Accounts and periods by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from libs.events.budget import accounts, level_of, period_name


def test_a_request_is_charged_to_its_key_and_every_level_above() -> None:
    assert accounts("k-01j9", "acme/research/chat") == ("k-01j9", "acme/research/chat", "acme/research/*", "acme/*")
    assert [level_of(account) for account in accounts("k-01j9", "acme/research/chat")] == [
        "key k-01j9",
        "project acme/research/chat",
        "team acme/research",
        "organisation acme",
    ]


@pytest.mark.parametrize(
    ("at", "names"),
    [
        (datetime(2026, 11, 29, 12, tzinfo=UTC), ["2026-11-29", "2026-W48", "2026-11", "total"]),
        (datetime(2027, 1, 1, tzinfo=UTC), ["2027-01-01", "2026-W53", "2027-01", "total"]),
        (
            datetime(2026, 12, 1, 0, 30, tzinfo=timezone(timedelta(hours=1))),
            ["2026-11-30", "2026-W49", "2026-11", "total"],
        ),
    ],
)
def test_periods_are_those_of_utc(at: datetime, names: list[str]) -> None:
    assert [period_name(period, at) for period in ("day", "week", "month", "total")] == names
