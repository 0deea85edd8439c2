"""Facts become rows, whatever a client or a clock put into them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import msgspec
import pytest

from libs.events.policy import Finding, VerdictBatch, VerdictRecord
from libs.events.tenancy import Price
from libs.events.usage import RequestRecord, UsageBatch
from libs.events.views import Spend
from services.accounting.core import prices
from services.accounting.core.rows import BadFact, months_of, next_month, request_rows, verdict_rows
from services.accounting.core.spending import Complete, Sum, period_of, periods_at, published, rises

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
RECORD = RequestRecord(
    request_id="req-1",
    opened_at=NOON,
    closed_at=NOON + timedelta(seconds=2),
    key_id="k-1",
    project="a/b/c",
    model_asked="alias",
    model="small",
    protocol="openai.chat",
    status="ok",
    prompt_tokens=100,
    completion_tokens=50,
)


def batch(*records: RequestRecord) -> UsageBatch:
    return UsageBatch(gateway_id="gw-1", offset=10, records=records)


def test_the_model_that_answered_is_priced() -> None:
    book: prices.Prices = {}
    prices.add(book, 4, NOON, Price(model="small", prompt_micros=10, completion_micros=20))
    prices.add(book, 5, NOON, Price(model="alias", prompt_micros=999))
    (row,) = request_rows(batch(RECORD), book)
    assert (row.price_version, row.cost_micros) == (4, 2)
    assert (row.gateway_id, row.model_asked, row.model) == ("gw-1", "alias", "small")


def test_what_postgresql_cannot_hold_is_made_to_fit() -> None:
    wild = msgspec.structs.replace(
        RECORD,
        model_asked="\0" + "x" * 5000,
        prompt_tokens=10**30,
        completion_tokens=-5,
        opened_at=datetime(2026, 11, 29, 13, tzinfo=timezone(timedelta(hours=1))),
        closed_at=datetime(2026, 11, 29, 12, 0, 1),  # noqa: DTZ001
    )
    (row,) = request_rows(batch(wild), {})
    assert row.model_asked == "\ufffd" + "x" * 199
    assert row.prompt_tokens == 2**31 - 1
    assert row.completion_tokens == 0
    assert row.opened_at == NOON
    assert row.opened_at.tzinfo == UTC
    assert row.closed_at == NOON + timedelta(seconds=1)


def test_a_broken_clock_is_said() -> None:
    with pytest.raises(BadFact, match="check the gateway's clock"):
        request_rows(batch(msgspec.structs.replace(RECORD, opened_at=datetime(1, 1, 1, tzinfo=UTC))), {})


def test_verdicts_are_told_apart_by_their_place() -> None:
    finding = Finding(policy="p", rule="deny.\0", action="block", enforced=True)
    record = VerdictRecord(request_id="req-1", project="a/b/c", allow=False, findings=(finding,))
    rows = verdict_rows(VerdictBatch(guard_id="g-1", records=(record, record)), NOON, 77)
    assert [(row.sequence, row.place) for row in rows] == [(77, 0), (77, 1)]
    assert "\\u0000" not in rows[0].findings
    assert msgspec.json.decode(rows[0].findings)[0]["policy"] == "p"


def test_months() -> None:
    assert months_of([NOON, NOON, NOON - timedelta(days=40)]) == {date(2026, 11, 1), date(2026, 10, 1)}
    assert next_month(date(2026, 12, 1)) == date(2027, 1, 1)
    assert next_month(date(2026, 1, 1)) == date(2026, 2, 1)
    assert period_of(datetime(2026, 12, 1, 0, 30, tzinfo=timezone(timedelta(hours=1)))) == "2026-11"


def test_spend_only_rises() -> None:
    def spend(counted: int) -> Spend:
        return Spend(
            key_id="k",
            period="2026-11",
            requests=1,
            prompt_tokens=0,
            completion_tokens=0,
            cost_micros=0,
            counted=counted,
        )

    assert rises(None, spend(1))
    assert rises(spend(1), spend(2))
    assert not rises(spend(2), spend(2))
    assert not rises(spend(2), spend(1))
    assert rises(spend(2), msgspec.structs.replace(spend(2), epoch="another")), "its sequences begin anew"


def test_an_account_is_told_of_with_the_periods_that_hold() -> None:
    new_year = datetime(2027, 1, 1, 0, 20, tzinfo=UTC)
    assert periods_at(new_year) == ["2026-12", "2026-12-31", "2026-W53", "2027-01", "2027-01-01", "total"]
    assert periods_at(NOON) == ["2026-11", "2026-11-29", "2026-W48", "total"]
    sums = [Sum("k-1", "2026-12", 4, 10, 10, 20), Sum("k-1", "total", 9, 100, 100, 200)]
    (told,) = published(sums, new_year, Complete(5, "today"))
    assert (told.period, told.requests, told.cost_micros, told.counted) == ("2027-01", 0, 0, 9)
    assert told.spent_micros == {"2026-12": 20, "total": 200}
    assert (told.ledger, told.epoch) == (5, "today")
