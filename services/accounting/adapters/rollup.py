"""Requests of old months as sums: one transaction adds a month's sums to ``llmgw.usage_hour`` and drops its rows."""

from __future__ import annotations

from datetime import date
from typing import Any

LOCK_WAIT = "5s"
"""Dropping a partition waits for questions that are being answered, and everybody else for it: not for long."""
ROLL_UP_S = 3600.0
"""Patience with one month."""

_SUMS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "waited_ms",
    "cost_micros",
)

_ROLL_UP = f"""
INSERT INTO llmgw.usage_hour AS u (hour, key_id, project, model, {", ".join(_SUMS)})
SELECT date_trunc('hour', closed_at, 'UTC'), key_id, project, model, count(*), sum(prompt_tokens), sum(cached_tokens),
    sum(completion_tokens), sum(reasoning_tokens), coalesce(sum(waited_ms), 0), sum(cost_micros)
FROM {{partition}} GROUP BY 1, 2, 3, 4
ON CONFLICT (hour, key_id, project, model) DO UPDATE SET
    {", ".join(f"{column} = u.{column} + excluded.{column}" for column in _SUMS)}
"""


async def months_before(connection: Any, table: str, month: date) -> list[date]:
    """First days of the months before one of which a table has a partition, the oldest first."""
    rows = await connection.fetch(
        "SELECT relname AS name FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = to_regclass($1)",
        f"llmgw.{table}",
    )
    months = []
    for row in rows:
        year, _, number = row["name"].removeprefix(f"{table}_").partition("_")
        if year.isdecimal() and number.isdecimal():
            months.append(date(int(year), int(number), 1))
    return sorted(first_day for first_day in months if first_day < month)


async def roll_up(connection: Any, month: date) -> None:
    """Replace a month's requests by their sums: all of it or nothing."""
    partition = f"llmgw.request_{month:%Y_%m}"
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        # A request of that month that comes now waits, and finds the month gone: it begins a new partition of it.
        await connection.execute(f"LOCK TABLE {partition} IN SHARE ROW EXCLUSIVE MODE")
        await connection.execute(_ROLL_UP.format(partition=partition), timeout=ROLL_UP_S)
        await _drop(connection, "request", partition)


async def drop_verdicts(connection: Any, month: date) -> None:
    """Drop what guards found in a month."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        await _drop(connection, "verdict", f"llmgw.verdict_{month:%Y_%m}")


async def _drop(connection: Any, table: str, partition: str) -> None:
    await connection.execute(f"ALTER TABLE llmgw.{table} DETACH PARTITION {partition}")
    await connection.execute(f"DROP TABLE {partition}")
