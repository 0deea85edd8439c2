"""The ledger on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from libs.events.views import Spend
from libs.testing.ledger import inconsistencies, rows
from services.accounting.adapters import postgres, schema
from services.accounting.adapters.postgres import Entry, Ledger, PostgresAway, PostgresRefused
from services.accounting.core.rows import RequestRow, VerdictRow, months_back
from services.accounting.core.spending import Complete, Sum, ended_at, published

LATER = ("waited_ms",)
"""Columns the first ledgers did not have."""
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def row(number: int, at: datetime = NOON, **other: object) -> RequestRow:
    fields = {
        "request_id": f"req-{number:020x}",
        "opened_at": at,
        "closed_at": at + timedelta(seconds=1),
        "key_id": f"k-{number % 2}",
        "project": f"acme/research/{'chat' if number % 2 else 'batch'}",
        "model_asked": "small",
        "model": "small",
        "protocol": "openai.chat",
        "stream": True,
        "status": "ok",
        "http_status": 200,
        "replica_id": "r-1",
        "attempts": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": number,
        "reasoning_tokens": 0,
        "tokens_estimated": False,
        "first_token_ms": 12.5,
        "duration_ms": 1000.0,
        "waited_ms": 20.5,
        "price_version": 3,
        "cost_micros": 100,
        "gateway_id": "gw-1",
    }
    return RequestRow(**fields | other)  # type: ignore[arg-type]


@pytest.fixture
async def ledger(postgres_dsn: str) -> AsyncIterator[Ledger]:
    ledger = Ledger(postgres_dsn)
    yield ledger
    await ledger.close()


COMPLETE = Complete(7, "2026-11-29")


def said(sums: Iterable[Sum], at: datetime = NOON) -> dict[str, Spend]:
    """What is published of sums, by account."""
    return {spend.key_id: spend for spend in published(sums, at, COMPLETE)}


async def test_an_entry_is_rows_and_sums(ledger: Ledger, postgres_dsn: str) -> None:
    committed = await ledger.commit(Entry([row(1), row(2), row(3)]), NOON)
    assert committed.added == 3
    spent = said(committed.sums)
    assert set(spent) == {"k-0", "k-1", "acme/research/chat", "acme/research/batch", "acme/research/*", "acme/*"}
    assert (spent["k-1"].period, spent["k-1"].requests, spent["k-1"].completion_tokens) == ("2026-11", 2, 4)
    assert spent["k-0"].cost_micros == spent["acme/research/batch"].cost_micros == 100
    assert spent["acme/*"].spent_micros == dict.fromkeys(("2026-11-29", "2026-W48", "2026-11", "total"), 300)
    assert spent["acme/*"].counted == 3
    assert (spent["k-1"].ledger, spent["k-1"].epoch) == COMPLETE
    assert [r.request_id[-1] for r in await rows(postgres_dsn)] == ["1", "2", "3"]
    assert await inconsistencies(postgres_dsn) == []


async def test_a_repeated_entry_changes_nothing_and_still_tells_the_sums(ledger: Ledger, postgres_dsn: str) -> None:
    entry = Entry([row(1), row(2)])
    first = await ledger.commit(entry, NOON)
    again = await ledger.commit(entry, NOON)
    assert again.added == 0
    assert list(again.sums) == list(first.sums), "who did not see the first answer learns the same"
    assert await inconsistencies(postgres_dsn) == []


async def test_a_request_is_one_row_in_one_entry_and_whatever_else_differs(ledger: Ledger, postgres_dsn: str) -> None:
    late = row(1, at=NOON + timedelta(seconds=5), status="cut", cost_micros=7)
    await ledger.commit(Entry([row(1), row(1), late]), NOON)
    await ledger.commit(Entry([late, row(2)]), NOON)
    found = await rows(postgres_dsn)
    assert [(r.request_id[-1], r.status) for r in found] == [("1", "ok"), ("2", "ok")]
    assert await inconsistencies(postgres_dsn) == []


async def test_months_come_in_any_order(ledger: Ledger, postgres_dsn: str) -> None:
    times = [
        NOON + timedelta(days=400),
        NOON - timedelta(days=400),
        NOON,
        datetime(2026, 10, 31, 23, 59, 59, tzinfo=UTC),
    ]
    committed = await ledger.commit(Entry([row(n, at) for n, at in enumerate(times)]), NOON)
    assert committed.added == 4
    spent = said(committed.sums)
    assert spent["acme/*"].spent_micros == {"2026-11-29": 100, "2026-W48": 100, "2026-11": 200, "total": 400}, (
        "opened in October, closed in November: November's"
    )
    assert (spent["k-0"].requests, spent["k-0"].counted) == (1, 2)
    assert await inconsistencies(postgres_dsn) == []


async def test_verdicts_enter_once(ledger: Ledger, postgres_dsn: str) -> None:
    verdicts = [VerdictRow(NOON, 7, place, "g-1", "req-1", "a/b/c", False, '[{"policy": "p"}]', 40) for place in (0, 1)]
    for _ in range(2):
        await ledger.commit(Entry((), verdicts), NOON)
    connection = await asyncpg.connect(postgres_dsn)
    assert await connection.fetchval("SELECT count(*) FROM llmgw.verdict WHERE findings->0->>'policy' = 'p'") == 2
    await connection.close()


async def test_usage_by_every_level_and_within_times(ledger: Ledger) -> None:
    await ledger.commit(Entry([row(1), row(2, model="big"), row(3, at=NOON + timedelta(hours=1))]), NOON)
    by_project = await ledger.usage("project", None, None, "", 100)
    assert [
        (r.name, r.requests, r.prompt_tokens, r.cached_tokens, r.completion_tokens, r.cost_micros) for r in by_project
    ] == [
        ("acme/research/batch", 1, 10, 4, 2, 100),
        ("acme/research/chat", 2, 20, 8, 4, 200),
    ]
    assert [r.waited_ms for r in by_project] == [20.5, 41.0]
    assert [r.name for r in await ledger.usage("project", None, None, "acme/research/batch", 100)] == [
        "acme/research/chat"
    ]
    assert [r.name for r in await ledger.usage("project", None, None, "", 1)] == ["acme/research/batch"]
    assert {r.name for r in await ledger.usage("model", None, None, "", 100)} == {"small", "big"}
    assert {r.name for r in await ledger.usage("key", None, None, "", 100)} == {"k-0", "k-1"}
    assert [(r.name, r.requests) for r in await ledger.usage("org", None, None, "", 100)] == [("acme", 3)]
    assert [(r.name, r.requests) for r in await ledger.usage("team", None, None, "", 100)] == [("acme/research", 3)]
    closed = NOON + timedelta(seconds=1)
    assert [r.requests for r in await ledger.usage("org", closed, closed + timedelta(microseconds=1), "", 100)] == [2]
    assert await ledger.usage("org", None, closed, "", 100) == [], "up to before"


async def test_what_was_refused_is_a_request_without_tokens(ledger: Ledger) -> None:
    nothing = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0, "cost_micros": 0}
    refused = [row(n, status=f"refused_{why}", **nothing) for n, why in enumerate(("limit", "budget", "guard"), 2)]
    await ledger.commit(Entry([row(1), *refused]), NOON)

    [model] = await ledger.usage("model", None, None, "", 100)

    assert (model.requests, model.prompt_tokens, model.completion_tokens, model.cost_micros) == (4, 10, 1, 100)


async def test_spend_is_told_of_the_periods_that_hold(ledger: Ledger) -> None:
    await ledger.commit(Entry([row(1), row(3, at=NOON - timedelta(days=60))]), NOON)
    told = said(await ledger.sums(NOON, ["k-1"]))
    assert told["k-1"].spent_micros == {"2026-11-29": 100, "2026-W48": 100, "2026-11": 100, "total": 200}
    later = said(await ledger.sums(NOON + timedelta(days=60), ["k-1"]), NOON + timedelta(days=60))
    assert later["k-1"].spent_micros == {"total": 200}
    assert (later["k-1"].period, later["k-1"].requests, later["k-1"].counted) == ("2027-01", 0, 2)
    turn = datetime(2026, 11, 30, 0, 10, tzinfo=UTC)
    turning = said(await ledger.sums(turn, ["k-1"]), turn)
    assert turning["k-1"].spent_micros == {"2026-11-29": 100, "2026-W48": 100, "2026-11": 100, "total": 200}


async def test_every_account_is_read_as_it_was_at_one_moment_and_only_what_rose(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "ACCOUNTS", 2)
    await ledger.commit(Entry([row(1), row(2)]), NOON)
    known = {"k-1": 1, "acme/*": 1}
    async with ledger.whole(NOON) as whole:
        await ledger.commit(Entry([row(n) for n in range(3, 9)]), NOON)
        told = [one async for part in whole.rising(lambda account: known.get(account, 0)) for one in part]
    assert {name: spend.counted for name, spend in said(told).items()} == {
        **dict.fromkeys(("k-0", "acme/research/batch", "acme/research/chat"), 1),
        **dict.fromkeys(("acme/research/*", "acme/*"), 2),
    }


async def test_sums_of_ended_periods_are_dropped_and_requests_stay(ledger: Ledger, postgres_dsn: str) -> None:
    old = NOON - timedelta(days=100)
    await ledger.commit(Entry([row(1), row(3, at=old)]), NOON)
    while await ledger.drop(ended_at(NOON), 4):
        pass
    connection = await asyncpg.connect(postgres_dsn)
    periods = await connection.fetch("SELECT period, requests FROM llmgw.spend WHERE account = 'k-1' ORDER BY 1")
    assert [tuple(one) for one in periods] == [("2026-11", 1), ("2026-11-29", 1), ("2026-W48", 1), ("total", 2)]
    await connection.execute("SET enable_seqscan = off")
    plan = await connection.fetch(f"EXPLAIN {postgres._EVERY_ACCOUNT}")
    await connection.close()
    assert any("spend_period" in line[0] for line in plan)
    assert len(await rows(postgres_dsn)) == 2


async def test_requests_of_months_that_are_not_kept_become_sums_that_say_the_same(
    ledger: Ledger, postgres_dsn: str
) -> None:
    months = [NOON - timedelta(days=days) for days in (0, 31, 62, 93, 124)]
    requests = [row(n, at, model="small" if n % 3 else "big") for n, at in enumerate(months * 4)]
    found = VerdictRow(months[-1], 7, 0, "g-1", "req-1", "a/b/c", False, "[]", 40)
    await ledger.commit(Entry(requests, [found]), NOON)

    async def usage() -> list[object]:
        until = NOON - timedelta(days=40)
        hour = until.replace(minute=0, second=0, microsecond=0)
        return [
            *[await ledger.usage(by, None, None, "", 100) for by in postgres.NAMES],
            await ledger.usage("key", None, hour, "", 100),
            await ledger.usage("model", hour, None, "", 100),
            await ledger.usage("key", None, None, "k-0", 100),
        ]

    before = await usage()
    oldest = months_back(NOON, 2)
    assert oldest == datetime(2026, 9, 1, tzinfo=UTC).date()
    gone = []
    while (month := await ledger.roll_up(oldest)) is not None:
        gone.append(month.month)
    assert gone == [7, 8]
    assert await usage() == before
    assert len(await rows(postgres_dsn)) == 12
    connection = await asyncpg.connect(postgres_dsn)
    assert await connection.fetchval("SELECT count(*) FROM llmgw.verdict") == 0
    await connection.close()
    # One that comes late enters a new partition of its month, and its sums are added to those there are.
    await ledger.commit(Entry([row(1000, months[-1])]), NOON)
    late = await usage()
    assert late != before
    assert (await ledger.roll_up(oldest), await ledger.roll_up(oldest)) == (months[-1].date().replace(day=1), None)
    assert await usage() == late


async def test_a_ledger_from_before_accounts_gets_their_sums(
    ledger: Ledger, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = schema.known()
    monkeypatch.setattr(schema, "known", lambda: every[:1])
    old = Ledger(postgres_dsn)
    await old.ping()
    await old.close()
    connection = await asyncpg.connect(postgres_dsn)
    some = [row(n, at=NOON - timedelta(days=20 * n)) for n in range(4)]
    await connection.execute("CREATE TABLE llmgw.early PARTITION OF llmgw.request DEFAULT")
    columns = [column for column in RequestRow._fields if column not in LATER]
    records = [[getattr(one, column) for column in columns] for one in some]
    await connection.copy_records_to_table("request", schema_name="llmgw", records=records, columns=columns)
    monkeypatch.setattr(schema, "known", lambda: every)
    await schema.migrate(connection)
    await connection.close()
    assert await inconsistencies(postgres_dsn) == []
    assert said(await ledger.sums(NOON, ["acme/*"]))["acme/*"].counted == 4


async def test_data_it_cannot_take_is_refused_and_leaves_nothing(ledger: Ledger, postgres_dsn: str) -> None:
    with pytest.raises(PostgresRefused):
        await ledger.commit(Entry([row(1), row(2, model="nul \0 inside")]), NOON)
    assert await rows(postgres_dsn) == []
    assert (await ledger.commit(Entry([row(1)]), NOON)).added == 1


async def test_several_instances_migrate_one_database_at_once(postgres_dsn: str) -> None:
    ledgers = [Ledger(postgres_dsn) for _ in range(4)]
    await asyncio.gather(*(ledger.ping() for ledger in ledgers))
    entry = Entry([row(n) for n in range(50)])
    results = await asyncio.gather(*(ledger.commit(entry, NOON) for ledger in ledgers))
    assert sum(result.added for result in results) == 50
    assert await inconsistencies(postgres_dsn) == []
    for ledger in ledgers:
        await ledger.close()


async def test_partitions_are_made_ahead(ledger: Ledger, postgres_dsn: str) -> None:
    await ledger.ping()
    connection = await asyncpg.connect(postgres_dsn)
    for month in schema.months_to_come():
        assert await connection.fetchval("SELECT to_regclass($1)", f"llmgw.request_{month:%Y_%m}") is not None
    await connection.close()


async def test_a_partition_dropped_behind_our_back_is_made_again(ledger: Ledger, postgres_dsn: str) -> None:
    await ledger.commit(Entry([row(1)]), NOON)
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("DROP TABLE llmgw.request_2026_11")
    await connection.close()
    with pytest.raises(PostgresAway, match="no partition"):
        await ledger.commit(Entry([row(2)]), NOON)
    assert (await ledger.commit(Entry([row(2)]), NOON)).added == 1


async def test_a_database_of_a_newer_program_is_left_alone(ledger: Ledger, postgres_dsn: str) -> None:
    await ledger.ping()
    await ledger.close()
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("INSERT INTO llmgw.migration (version, name, sha256) VALUES (9999, 'later', '')")
    await connection.close()
    with pytest.raises(PostgresAway, match="migration 9999, which this program does not know"):
        await ledger.ping()


async def test_a_wrong_password_is_somebodys_to_mend_not_a_loss(postgres_dsn: str) -> None:
    ledger = Ledger(postgres_dsn.replace(":test@", ":wrong@"))
    with pytest.raises(PostgresAway, match="password"):
        await ledger.commit(Entry([row(1)]), NOON)


async def test_more_than_five_thousand_rows_a_second(
    ledger: Ledger, postgres_dsn: str, record_property: Callable[[str, object], None]
) -> None:
    loop = asyncio.get_running_loop()
    await ledger.ping()
    entries = [Entry([row(b * 2000 + n) for n in range(2000)]) for b in range(10)]
    started = loop.time()
    for entry in entries:
        await ledger.commit(entry, NOON)
    rate = 20_000 / (loop.time() - started)
    record_property("ledger, transactions of 2,000", f"{rate:,.0f} rows/s")
    assert rate > 5000


def test_migrations() -> None:
    one, two = schema.Migration(1, "one", "SELECT 1"), schema.Migration(2, "two", "SELECT 2")
    assert schema.due([one, two], {}) == [one, two]
    assert schema.due([one, two], {1: one.sha256}) == [two]
    with pytest.raises(schema.MigrationProblem, match="was changed after it was applied"):
        schema.due([one], {1: "another"})
    assert [migration.version for migration in schema.known()] == list(range(1, len(schema.known()) + 1))
