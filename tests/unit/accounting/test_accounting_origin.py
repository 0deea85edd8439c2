from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from services.accounting.core.origin import Origin, Stream, begin

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
CREATED = "2026-11-01T08:00:00.123456789Z"


def stream(**fields: Any) -> Stream:
    given: dict[str, Any] = {"created": CREATED, "last": 120, "done": 100, "mark": "m-100"}
    return Stream(**given | fields)


def known(**fields: Any) -> Origin:
    given: dict[str, Any] = {"complete": 100, "reached": 100, "mark": "m-100", "begun_at": NOW - timedelta(days=9)}
    return Origin(**{"epoch": CREATED, "stream": CREATED, **given, **fields})


def test_a_ledger_and_a_stream_that_fit_go_on() -> None:
    assert begin(known(), True, stream(), NOW).origin == known()
    assert begin(known(), True, stream(), NOW).after is None
    # The last transaction was not acknowledged yet; what it holds is too old to be there.
    assert begin(known(), True, stream(done=90, mark=None), NOW).origin == known()


def test_the_first_start_and_one_after_an_upgrade_say_nothing() -> None:
    first = begin(None, False, stream(last=0, done=0, mark=None), NOW)
    assert (first.after, first.origin.why, first.origin.epoch) == (None, "", CREATED)
    upgraded = begin(None, True, stream(mark=None), NOW)
    assert (upgraded.after, upgraded.origin.why, upgraded.origin.complete) == (None, "", 100)


def test_an_empty_database_is_counted_anew() -> None:
    found = begin(None, False, stream(mark=None), NOW)
    assert found.after == 0
    assert "the database was found empty on 2026-11-30 12:00" in found.origin.why
    assert found.origin.epoch > CREATED
    # An instance that died over it goes on with it.
    half = msgspec.structs.replace(found.origin, complete=0, reached=0)
    again = begin(half, True, stream(mark=None), NOW + timedelta(minutes=1))
    assert (again.origin, again.after) == (half, 0)


def test_a_database_that_is_behind_gets_what_it_lacks() -> None:
    found = begin(known(complete=60, reached=61, mark="m-61"), True, stream(mark="m-61"), NOW)
    assert found.after == 60
    assert "the database was put back from a copy" in found.origin.why


def test_a_bus_that_is_new_begins_another_epoch_behind_the_former() -> None:
    created = "2026-11-30T11:59:00Z"
    found = begin(known(), True, stream(created=created, last=0, done=0, mark=None), NOW)
    assert (found.after, found.origin.epoch, found.origin.complete) == (None, created, 0)
    assert "the bus was begun anew on 2026-11-30 11:59:00" in found.origin.why


@pytest.mark.parametrize("went", [{"last": 99, "done": 90, "mark": None}, {"last": 300, "done": 90, "mark": "other"}])
def test_a_bus_that_went_back_begins_another_epoch(went: dict[str, Any]) -> None:
    found = begin(known(), True, stream(**went), NOW)
    assert (found.after, found.origin.complete) == (None, 90)
    assert found.origin.epoch > CREATED
    assert "put back from a copy" in found.origin.why


def test_a_later_epoch_sorts_behind_though_a_clock_was_ahead() -> None:
    ahead = "2027-01-01T00:00:00Z"
    former = known(epoch=ahead, stream=ahead)
    back = begin(former, True, stream(created=ahead, last=99, done=90, mark=None), NOW).origin
    assert back.epoch > ahead
    again = begin(msgspec.structs.replace(back, reached=120), True, stream(created=ahead, last=99, done=90), NOW).origin
    assert again.epoch > back.epoch
    assert begin(former, True, stream(), NOW).origin.epoch > ahead
