"""The schema ``llmgw``: numbered .sql files, each applied once, and a partition for every month."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib import resources
from typing import Any

from services.accounting.core.rows import next_month

log = logging.getLogger("llmgw.accounting")

LOCK = 0x6C6C6D6777
"""Key of the advisory lock under which the schema is changed ("llmgw" in hex)."""

PARTITION_KEYS = {"request": "request_id", "verdict": "stored_at, sequence, place"}
"""Tables that have a partition a month, and the primary key of each of those."""

MONTHS_AHEAD = 2
"""Partitions are made before their month begins; also for older months, when rows for them come late."""

MIGRATE_S = 3600.0
"""Patience with one migration: it may read the whole ledger."""

_FILE = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")


class MigrationProblem(Exception):
    """The database's schema is not one this program can bring up to date."""


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Of its text, hex; kept in the database, to find out one that was edited after it ran."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def known() -> list[Migration]:
    """The program's migrations, in order."""
    migrations = []
    for file in resources.files("services.accounting.migrations").iterdir():
        if match := _FILE.match(file.name):
            migrations.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return sorted(migrations, key=lambda migration: migration.version)


def due(migrations: Sequence[Migration], applied: dict[int, str]) -> list[Migration]:
    """Which migrations are still to be applied, given version and SHA-256 of those that were.

    Raises MigrationProblem when the database was made by a newer program or by another text of a file.
    """
    newer = sorted(applied.keys() - {migration.version for migration in migrations})
    if newer:
        raise MigrationProblem(
            f"the database has migration {newer[-1]}, which this program does not know; start the newer program"
        )
    for migration in migrations:
        if applied.get(migration.version, migration.sha256) != migration.sha256:
            raise MigrationProblem(
                f"migration {migration.version} ({migration.name}) was changed after it was applied; "
                "put the file back and write a new migration"
            )
    return [migration for migration in migrations if migration.version not in applied]


async def migrate(connection: Any) -> None:
    """Bring the schema up to date, all of it or nothing. Raises MigrationProblem."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        await connection.execute("SET LOCAL client_min_messages = warning")
        await connection.execute("CREATE SCHEMA IF NOT EXISTS llmgw")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS llmgw.migration (version integer PRIMARY KEY, name text NOT NULL,"
            " sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        rows = await connection.fetch("SELECT version, sha256 FROM llmgw.migration")
        for migration in due(known(), {row["version"]: row["sha256"] for row in rows}):
            await connection.execute(migration.sql, timeout=MIGRATE_S)
            await connection.execute(
                "INSERT INTO llmgw.migration (version, name, sha256) VALUES ($1, $2, $3)",
                migration.version,
                migration.name,
                migration.sha256,
            )
            log.info("applied migration %d (%s)", migration.version, migration.name)


async def make_partitions(connection: Any, table: str, months: Iterable[date]) -> None:
    """The partitions of a table for some months (first days), as far as they are not there."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        for month in sorted(months):
            partition = f"llmgw.{table}_{month:%Y_%m}"
            if await connection.fetchval("SELECT to_regclass($1)", partition) is not None:
                continue
            # Attached rather than made in place: that waits for no question that is being answered.
            key = PARTITION_KEYS[table]
            await connection.execute(f"CREATE TABLE {partition} (LIKE llmgw.{table}, PRIMARY KEY ({key}))")
            await connection.execute(
                f"ALTER TABLE llmgw.{table} ATTACH PARTITION {partition}"
                f" FOR VALUES FROM ('{month} 00:00:00+00') TO ('{next_month(month)} 00:00:00+00')"
            )


def months_to_come() -> set[date]:
    """This UTC month and MONTHS_AHEAD more."""
    month = datetime.now(UTC).date().replace(day=1)
    months = {month}
    for _ in range(MONTHS_AHEAD):
        month = next_month(month)
        months.add(month)
    return months
