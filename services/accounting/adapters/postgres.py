"""The ledger in PostgreSQL. The only module that knows asyncpg; its errors become the two below."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import asyncpg

from libs.events.questions import UsageRow
from services.accounting.core.origin import Origin, Reached
from services.accounting.core.rows import RequestRow, VerdictRow, months_of
from services.accounting.core.spending import Sum, periods_at

from . import origin, rollup, schema

CONNECT_S = 5.0
COMMIT_S = 30.0
"""A statement of a commit that takes longer is given up with its connection, and tried on a new one."""
QUESTION_S = 20.0
QUESTIONS = 3
"""Questions answered at a time; more wait."""

NAMES: Mapping[str, str] = {
    "org": "split_part(project, '/', 1)",
    "team": "split_part(project, '/', 1) || '/' || split_part(project, '/', 2)",
    "project": "project",
    "key": "key_id",
    "model": "model",
}
"""What usage can be asked by, and how its name is read from a row."""

_ADD_REQUESTS = f"""
WITH fresh AS (
    INSERT INTO llmgw.request ({", ".join(RequestRow._fields)})
    SELECT {", ".join(RequestRow._fields)} FROM incoming_request
    ON CONFLICT DO NOTHING
    RETURNING key_id, project, closed_at, prompt_tokens, completion_tokens, cost_micros
), daily AS (
    SELECT key_id, project, (closed_at AT TIME ZONE 'UTC')::date AS day, count(*) AS requests,
        sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens,
        sum(cost_micros) AS cost_micros
    FROM fresh GROUP BY 1, 2, 3
), sums AS (
    INSERT INTO llmgw.spend AS s ({", ".join(Sum._fields)})
    SELECT account, period, sum(requests), sum(prompt_tokens), sum(completion_tokens), sum(cost_micros)
    FROM daily, llmgw.accounts(key_id, project) AS account, llmgw.periods(day) AS period
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (account, period) DO UPDATE SET
        requests = s.requests + excluded.requests,
        prompt_tokens = s.prompt_tokens + excluded.prompt_tokens,
        completion_tokens = s.completion_tokens + excluded.completion_tokens,
        cost_micros = s.cost_micros + excluded.cost_micros
)
SELECT count(*) FROM fresh
"""

_ADD_VERDICTS = f"""
INSERT INTO llmgw.verdict ({", ".join(VerdictRow._fields)})
SELECT {", ".join(VerdictRow._fields)} FROM incoming_verdict
ON CONFLICT DO NOTHING
"""

_SPEND = f"SELECT {', '.join(Sum._fields)} FROM llmgw.spend WHERE period = ANY($1)"
_SPEND_OF = f"{_SPEND} AND account = ANY($2)"
_TOUCHED = (
    "SELECT account FROM (SELECT DISTINCT key_id, project FROM incoming_request) AS paths,"
    " llmgw.accounts(key_id, project) AS account"
)


_USAGE = """
WITH sums AS (
    SELECT {name} AS name, count(*) AS requests, sum(prompt_tokens) AS prompt_tokens,
        sum(cached_tokens) AS cached_tokens, sum(completion_tokens) AS completion_tokens,
        sum(cost_micros) AS cost_micros, coalesce(sum(waited_ms), 0) AS waited_ms
    FROM llmgw.request WHERE {kept} GROUP BY 1
    UNION ALL
    SELECT {name}, sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
        sum(cost_micros), sum(waited_ms)
    FROM llmgw.usage_hour WHERE {hours} GROUP BY 1
)
SELECT name, sum(requests)::bigint AS requests, sum(prompt_tokens)::bigint AS prompt_tokens,
    sum(cached_tokens)::bigint AS cached_tokens, sum(completion_tokens)::bigint AS completion_tokens,
    sum(cost_micros)::bigint AS cost_micros, sum(waited_ms) AS waited_ms
FROM sums GROUP BY 1 ORDER BY 1 LIMIT $2
"""
_EVERY_ACCOUNT = "SELECT account, requests FROM llmgw.spend WHERE period = 'total'"
_DROP_ENDED = """
DELETE FROM llmgw.spend WHERE ctid = ANY(ARRAY(SELECT ctid FROM llmgw.spend WHERE period = ANY($1) LIMIT $2))
"""
ACCOUNTS = 2_000
"""Accounts looked at at a time where every one is."""


_AT_LEAST = f"""
INSERT INTO llmgw.spend AS s ({", ".join(Sum._fields)}) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (account, period) DO UPDATE SET
    requests = greatest(s.requests, excluded.requests),
    prompt_tokens = greatest(s.prompt_tokens, excluded.prompt_tokens),
    completion_tokens = greatest(s.completion_tokens, excluded.completion_tokens),
    cost_micros = greatest(s.cost_micros, excluded.cost_micros)
"""


class PostgresAway(Exception):
    """It cannot be reached or cannot work now. To be tried again; the message says what it said."""


class LedgerChanged(Exception):
    """It is there, and is not the one that was written until now."""


class PostgresRefused(Exception):
    """It will never take this data: the fault is in the data."""


@dataclass(frozen=True)
class Entry:
    """What one transaction adds to the ledger."""

    requests: Sequence[RequestRow] = ()
    verdicts: Sequence[VerdictRow] = ()
    reached: Reached | None = None
    """How far in the stream the ledger is with it."""


@dataclass(frozen=True)
class Committed:
    """What became of an entry."""

    added: int
    """Requests that were not in the ledger before."""
    sums: Sequence[Sum]
    """Of every account the entry speaks of, whether it changed them or not."""


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except asyncpg.CheckViolationError as error:
        # A partition was dropped behind our back; the next connection looks again which there are.
        raise PostgresAway(str(error)) from error
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        raise PostgresRefused(str(error)) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        # Also what only a person can mend (no such database, no right): the rows wait for that person.
        raise PostgresAway(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error
    except schema.MigrationProblem as error:
        raise PostgresAway(str(error)) from error


class Whole:
    """Every account's sums at one moment. Every method raises PostgresAway, PostgresRefused."""

    def __init__(self, connection: Any, at: datetime) -> None:
        self._connection = connection
        self._at = at

    async def rising(self, counted: Callable[[str], int]) -> AsyncGenerator[list[Sum], None]:
        """Of the accounts with more requests than ``counted`` knows of, up to ACCOUNTS of them at a time; a list may be
        empty."""
        with _mapped():
            cursor = await self._connection.cursor(_EVERY_ACCOUNT)
            while rows := await cursor.fetch(ACCOUNTS):
                accounts = [account for account, requests in rows if requests > counted(account)]
                yield await _read_sums(self._connection, _SPEND_OF, self._at, accounts) if accounts else []


class Ledger:
    """The schema ``llmgw`` of one database: a connection of its own to write, a few more to read.

    Every method raises PostgresAway, or PostgresRefused where the fault is in the data, and connects by itself when it
    is next called.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._writer: Any = None
        self._writing = asyncio.Lock()
        self._readers: Any = None
        self._partitions: dict[str, set[date]] = {}
        """What is known to be there, as the writer saw it since it connected."""

    async def _open(self) -> None:
        """Connect the writer and bring the schema up to date. Nothing to do when that is so."""
        if self._writer is not None and not self._writer.is_closed():
            return
        with _mapped():
            connection = await asyncpg.connect(self._dsn, timeout=CONNECT_S, command_timeout=COMMIT_S)
            try:
                await schema.migrate(connection)
                for table in schema.PARTITION_KEYS:
                    await connection.execute(
                        f"CREATE TEMP TABLE incoming_{table} (LIKE llmgw.{table}) ON COMMIT DELETE ROWS"
                    )
                self._partitions = {table: set() for table in schema.PARTITION_KEYS}
                await self._make_partitions(connection, "request", schema.months_to_come())
                await self._make_partitions(connection, "verdict", schema.months_to_come())
            except BaseException:
                connection.terminate()
                raise
            self._writer = connection

    async def close(self) -> None:
        """Cut every connection; what is under way is lost."""
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, None
        for connection in (writer, readers):
            if connection is not None:
                connection.terminate()

    async def ping(self) -> None:
        """Have the writer answer, and make the partitions of the months to come."""
        async with self._writing:
            await self._open()
            with _mapped(), self._trusted_no_more():
                await self._writer.execute("SELECT 1", timeout=CONNECT_S)
                for table in schema.PARTITION_KEYS:
                    await self._make_partitions(self._writer, table, schema.months_to_come())

    async def commit(self, entry: Entry, at: datetime) -> Committed:
        """Add an entry, in one transaction. What is there already stays as it is.

        ``at`` is the time: sums of accounts are of the periods that hold then. Raises LedgerChanged where the ledger is
        not the one that ``entry.reached`` goes on from.
        """
        async with self._writing:
            await self._open()
            with _mapped(), self._trusted_no_more():
                await self._make_partitions(self._writer, "request", months_of(r.opened_at for r in entry.requests))
                await self._make_partitions(self._writer, "verdict", months_of(v.stored_at for v in entry.verdicts))
                async with self._writer.transaction():
                    return await self._write(self._writer, entry, at)

    async def origin(self) -> tuple[Origin | None, bool]:
        """The newest origin there is, and whether the ledger has any request."""
        async with self._writing:
            await self._open()
            with _mapped(), self._trusted_no_more():
                holds = await self._writer.fetchval("SELECT EXISTS (SELECT 1 FROM llmgw.request)")
                return await origin.newest(self._writer), holds

    async def begin(self, of: Origin) -> None:
        """Enter another history of the stream from now on. Nothing changes where that is known."""
        async with self._writing:
            await self._open()
            with _mapped(), self._trusted_no_more():
                await origin.add(self._writer, of)

    async def reach(self, sequence: int) -> None:
        """Note in the newest origin that everything up to a sequence is entered."""
        async with self._writing:
            await self._open()
            with _mapped(), self._trusted_no_more():
                await origin.complete(self._writer, sequence)

    async def at_least(self, sums: Sequence[Sum]) -> None:
        """Have no sum be less than these."""
        async with self._writing:
            await self._open()
            with _mapped(), self._trusted_no_more():
                await self._writer.executemany(_AT_LEAST, sums)

    async def drop(self, periods: Collection[str], most: int) -> int:
        """Drop the sums of some periods, ``most`` rows at most; how many were dropped. Requests stay as they are."""
        async with self._writing:
            await self._open()
            with _mapped(), self._trusted_no_more():
                done = await self._writer.execute(_DROP_ENDED, list(periods), most)
                return int(done.rpartition(" ")[2])

    async def roll_up(self, before: date) -> date | None:
        """Keep the oldest month before one as sums only; the first day of that month, None: there is no such month.

        Over a connection of its own: it takes as long as it takes.
        """
        with _mapped():
            connection = await asyncpg.connect(self._dsn, timeout=CONNECT_S, command_timeout=rollup.ROLL_UP_S)
            try:
                for month in await rollup.months_before(connection, "verdict", before):
                    await rollup.drop_verdicts(connection, month)
                months = await rollup.months_before(connection, "request", before)
                if not months:
                    return None
                await rollup.roll_up(connection, months[0])
                return months[0]
            finally:
                connection.terminate()
                for known in self._partitions.values():
                    known.clear()

    async def sums(self, at: datetime, accounts: Collection[str]) -> list[Sum]:
        """Of accounts, in the periods that hold at a time or nearly (``periods_at``)."""
        async with self._reading() as connection:
            return await _read_sums(connection, _SPEND_OF, at, list(accounts))

    @asynccontextmanager
    async def whole(self, at: datetime) -> AsyncIterator[Whole]:
        """The sums of every account as they are now, to be read while the ledger goes on."""
        async with (
            self._reading() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute("SELECT 1")  # the moment is that of the first statement
            yield Whole(connection, at)

    async def usage(
        self, by: str, since: datetime | None, until: datetime | None, after: str, most: int
    ) -> list[UsageRow]:
        """Sums of the requests that closed from ``since`` up to before ``until``, by one of NAMES: the first ``most``
        names after ``after``. Of months that are kept as sums an hour counts whole, by its beginning."""
        arguments: list[Any] = [after, most]
        kept = [f"{NAMES[by]} > $1"] if after else ["$1 = ''"]
        hours = list(kept)
        if since is not None:
            arguments.append(since)
            kept.append(f"closed_at >= ${len(arguments)}")
            hours.append(f"hour >= ${len(arguments)}")
        if until is not None:
            arguments.append(until)
            # What was opened later was closed later: this leaves whole partitions aside.
            kept.append(f"closed_at < ${len(arguments)} AND opened_at < ${len(arguments)}")
            hours.append(f"hour < ${len(arguments)}")
        query = _USAGE.format(name=NAMES[by], kept=" AND ".join(kept), hours=" AND ".join(hours))
        async with self._reading() as connection:
            return [UsageRow(**row) for row in await connection.fetch(query, *arguments)]

    async def _write(self, connection: Any, entry: Entry, at: datetime) -> Committed:
        if entry.reached is not None and not await origin.raise_to(connection, entry.reached):
            raise LedgerChanged("the ledger is not the one that was written: it is empty, or older")
        if entry.verdicts:
            await connection.copy_records_to_table(
                "incoming_verdict", records=entry.verdicts, columns=VerdictRow._fields
            )
            await connection.execute(_ADD_VERDICTS)
        if not entry.requests:
            return Committed(0, ())
        await connection.copy_records_to_table("incoming_request", records=entry.requests, columns=RequestRow._fields)
        added = await connection.fetchval(_ADD_REQUESTS)
        return Committed(added, await _read_sums(connection, f"{_SPEND} AND account IN ({_TOUCHED})", at))

    async def _make_partitions(self, connection: Any, table: str, months: set[date]) -> None:
        there = self._partitions[table]
        if missing := months - there:
            await schema.make_partitions(connection, table, missing)
            there |= missing

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Any]:
        with _mapped():
            if self._readers is None:
                self._readers = await asyncpg.create_pool(
                    self._dsn, min_size=0, max_size=QUESTIONS, timeout=CONNECT_S, command_timeout=QUESTION_S
                )
            async with self._readers.acquire(timeout=CONNECT_S) as connection:
                yield connection

    @contextmanager
    def _trusted_no_more(self) -> Iterator[None]:
        """After any failure inside, also being cancelled, the writer is dropped: who knows what it still does."""
        try:
            yield
        except BaseException:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer.terminate()
            raise


async def _read_sums(connection: Any, query: str, at: datetime, *arguments: Any) -> list[Sum]:
    return [Sum(*row) for row in await connection.fetch(query, periods_at(at), *arguments)]
