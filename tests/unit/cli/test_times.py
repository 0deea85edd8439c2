"""Times are written in one way wherever a command takes one, and shown in one way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import llmgw
from cli.times import DURATION, LONGEST_S, PAST, Duration, Moment, duration_s, moment, written
from libs.events.times import rfc3339
from tests.unit.cli.test_command_line import leaves

NOW = datetime(2026, 11, 29, 14, 3, 20, tzinfo=UTC)
SECONDS = st.integers(86_400, 7_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("20m", 1200),
        ("1.5h", 5400),
        ("250 ms", 0.25),
        ("0", 0),
        ("7d", 604800),
        ("2w", 1209600),
        ("1h30m", 5400),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10x", "-3", "1e3", "5 k s", "20m!", "2026-11-29", "201y"])
def test_what_is_no_length_of_time_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        DURATION.convert(text, None, None)
    assert caught.value.message.endswith("is not a length of time: write 30s, 20m, 2h, 7d or several of these (1h30m)")


def test_a_time_beyond_any_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than a hundred years"):
        duration_s("99999999999d")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("20m", NOW - timedelta(minutes=20)),
        ("2h", NOW - timedelta(hours=2)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-11-28", datetime(2026, 11, 28, tzinfo=UTC)),
        ("2026-11-28T10:00:00", datetime(2026, 11, 28, 10, tzinfo=UTC)),
        ("2026-11-28 10:00", datetime(2026, 11, 28, 10, tzinfo=UTC)),
        ("2026-11-28T10:00:00Z", datetime(2026, 11, 28, 10, tzinfo=UTC)),
        ("2026-11-28T10:00:00+02:00", datetime(2026, 11, 28, 8, tzinfo=UTC)),
        ("14:03", datetime(2026, 11, 29, 14, 3, tzinfo=UTC)),
        ("9:03:20", datetime(2026, 11, 29, 9, 3, 20, tzinfo=UTC)),
    ],
)
def test_points_in_time(text: str, at: datetime) -> None:
    assert moment(text, NOW, -1) == at


def test_a_length_of_time_is_counted_ahead_where_the_future_is_meant() -> None:
    assert moment("30d", NOW, 1) == NOW + timedelta(days=30)


@pytest.mark.parametrize(
    "text", ["", "now", "20", "2026", "20x", "25:00", "2026-13-01", "2026-11-29T", "yesterday", "1e9d", "20m ago"]
)
def test_what_is_no_time_is_told_how_to_write_one(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        PAST.convert(text, None, None)
    assert caught.value.message == (
        f"{text!r} is not a time: write 20m, 2h or 7d, a date (2026-11-29), or RFC 3339 (2026-11-29T14:03:20Z)"
    )


@given(SECONDS, st.integers(-12, 14))
def test_what_is_shown_is_read_as_the_same_time(at: datetime, hours: int) -> None:
    assert moment(rfc3339(at.astimezone(timezone(timedelta(hours=hours)))), NOW, -1) == at


@given(st.integers(0, int(LONGEST_S) * 1000))
def test_a_length_of_time_that_is_shown_is_read_as_the_same(length_ms: int) -> None:
    assert duration_s(written(length_ms / 1000)) == pytest.approx(length_ms / 1000, abs=0.0005)


@given(st.text())
def test_no_text_is_anything_but_a_time_or_refused(text: str) -> None:
    problem = ""
    try:
        moment(text, NOW, -1)
    except ValueError as error:
        problem = str(error)
    assert not problem or "is not a time: write 20m" in problem


def test_every_command_reads_times_so() -> None:
    for path, command in leaves(llmgw):
        for parameter in command.params:
            timed = set(parameter.opts) & {"--at", "--since", "--until", "--expires", "--timeout", "--away"}
            assert not timed or isinstance(parameter.type, Duration | Moment), path
            assert not isinstance(parameter.type, click.DateTime), path
