"""The ledger as a test sees it: read from PostgreSQL, by its own eyes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import asyncpg


@dataclass(frozen=True)
class LedgerRow:
    """One request of the ledger: what a test compares with what its client saw."""

    request_id: str
    opened_at: datetime
    closed_at: datetime
    key_id: str
    project: str
    model: str
    status: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens_estimated: bool
    price_version: int | None
    cost_micros: int
    gateway_id: str


async def rows(dsn: str) -> list[LedgerRow]:
    """Every request in the ledger, as they were opened; none while the ledger has no table yet."""
    columns = ", ".join(LedgerRow.__dataclass_fields__)
    connection = await asyncpg.connect(dsn, timeout=5)
    try:
        if await connection.fetchval("SELECT to_regclass('llmgw.request')") is None:
            return []
        requests = await connection.fetch(f"SELECT {columns} FROM llmgw.request ORDER BY opened_at, request_id")
    finally:
        await connection.close()
    return [LedgerRow(**row) for row in requests]


async def inconsistencies(dsn: str) -> list[str]:
    """What in the ledger contradicts itself, one sentence each: a request that is there twice, sums that are not
    those of the rows. Empty: it is sound."""
    connection = await asyncpg.connect(dsn, timeout=5)
    try:
        twice = await connection.fetch(
            "SELECT request_id, count(*) AS n FROM llmgw.request GROUP BY 1 HAVING count(*) > 1 ORDER BY 1"
        )
        wrong = await connection.fetch(
            """
            WITH told AS (
                SELECT account, period, requests, prompt_tokens, completion_tokens, cost_micros FROM llmgw.spend
            ), charged AS (
                SELECT prompt_tokens, completion_tokens, cost_micros, closed_at AT TIME ZONE 'UTC' AS at,
                    key_id, project, regexp_replace(project, '[^/]*$', '*') AS team,
                    regexp_replace(project, '/.*$', '/*') AS org
                FROM llmgw.request
            ), true_sums AS (
                SELECT account, period, count(*)::bigint,
                    sum(prompt_tokens)::bigint, sum(completion_tokens)::bigint, sum(cost_micros)::bigint
                FROM charged, unnest(ARRAY[key_id, project, team, org]) AS account,
                    unnest(ARRAY[to_char(at, 'YYYY-MM-DD'), to_char(at, 'IYYY-"W"IW'), to_char(at, 'YYYY-MM'), 'total'])
                    AS period
                GROUP BY 1, 2
            )
            (SELECT 'spend', * FROM (TABLE told EXCEPT TABLE true_sums) AS t)
            UNION ALL (SELECT 'rows', * FROM (TABLE true_sums EXCEPT TABLE told) AS t)
            """
        )
    finally:
        await connection.close()
    sentences = [f"request {row['request_id']} is there {row['n']} times" for row in twice]
    return sentences + [f"{row[0]} of {row['account']} in {row['period']}: {tuple(row)[3:]}" for row in wrong]
