"""Requests and verdicts as rows of the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import NamedTuple

import msgspec

from libs.events.policy import Finding, VerdictBatch
from libs.events.usage import RequestRecord, UsageBatch

from .prices import Prices, charge

MAX_CHARACTERS = 200
"""Of a text column. The model a client asks for is whatever the client wrote."""

MAX_COUNT = 2**31 - 1
"""Of an integer column."""


FIRST_YEAR, LAST_YEAR = 2000, 2199
"""A time outside comes from a broken clock. Every month that has a request has a partition of its own."""


class BadFact(ValueError):
    """A fact that cannot stand in the ledger; the message says why."""


class RequestRow(NamedTuple):
    """One row of ``llmgw.request``; the fields are its columns, in order."""

    request_id: str
    opened_at: datetime
    closed_at: datetime
    key_id: str
    project: str
    model_asked: str
    model: str
    protocol: str
    stream: bool
    status: str
    http_status: int
    replica_id: str | None
    attempts: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    tokens_estimated: bool
    first_token_ms: float | None
    duration_ms: float
    waited_ms: float
    price_version: int | None
    cost_micros: int
    gateway_id: str


class VerdictRow(NamedTuple):
    """One row of ``llmgw.verdict``. Its key is where the batch stands in the stream and its place in it: when
    the message was stored never changes, however often it is delivered."""

    stored_at: datetime
    sequence: int
    place: int
    guard_id: str
    request_id: str
    project: str
    allow: bool
    findings: str
    """JSON: a list of findings, without text."""
    elapsed_us: int


def request_rows(batch: UsageBatch, prices: Prices) -> list[RequestRow]:
    """A gateway's batch, priced. Raises BadFact."""
    return [_request_row(batch.gateway_id, record, prices) for record in batch.records]


def verdict_rows(batch: VerdictBatch, stored_at: datetime, sequence: int) -> list[VerdictRow]:
    """A guard's batch, which is the message at a sequence of USAGE, stored there at a time. Raises BadFact."""
    return [
        VerdictRow(
            stored_at=_time(stored_at),
            sequence=sequence,
            place=place,
            guard_id=_text(batch.guard_id),
            request_id=_text(record.request_id),
            project=_text(record.project),
            allow=record.allow,
            findings=_json(record.findings),
            elapsed_us=_count(record.elapsed_us),
        )
        for place, record in enumerate(batch.records)
    ]


def months_of(times: Iterable[datetime]) -> set[date]:
    """The first days of the UTC months some UTC times lie in: the partitions their rows belong to."""
    return {date(year, month, 1) for year, month in {(t.year, t.month) for t in times}}


def next_month(month: date) -> date:
    """The first day of the month after the one a first day begins."""
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


def months_back(at: datetime, count: int) -> date:
    """The first day of the UTC month so many months before the one a time lies in."""
    number = at.year * 12 + at.month - 1 - count
    return date(number // 12, number % 12 + 1, 1)


def _request_row(gateway_id: str, record: RequestRecord, prices: Prices) -> RequestRow:
    closed_at = _time(record.closed_at)
    prompt, cached = _count(record.prompt_tokens), _count(record.cached_tokens)
    completion = _count(record.completion_tokens)
    version, cost = charge(prices, record.model, closed_at, record.status, prompt, cached, completion)
    return RequestRow(
        request_id=_text(record.request_id),
        opened_at=_time(record.opened_at),
        closed_at=closed_at,
        key_id=_text(record.key_id),
        project=_text(record.project),
        model_asked=_text(record.model_asked),
        model=_text(record.model),
        protocol=record.protocol,
        stream=record.stream,
        status=record.status,
        http_status=_count(record.http_status),
        replica_id=None if record.replica_id is None else _text(record.replica_id),
        attempts=_count(record.attempts),
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        reasoning_tokens=_count(record.reasoning_tokens),
        tokens_estimated=record.tokens_estimated,
        first_token_ms=record.first_token_ms,
        duration_ms=record.duration_ms,
        waited_ms=record.waited_ms,
        price_version=version,
        cost_micros=cost,
        gateway_id=_text(gateway_id),
    )


def _text(value: str) -> str:
    """A text PostgreSQL can hold (it has no NUL), of bounded length."""
    return value.replace("\0", "\ufffd")[:MAX_CHARACTERS]


def _count(value: int) -> int:
    """A count that fits its column. Nothing real is outside; one bad figure must not hold up everyone's rows."""
    return min(max(value, 0), MAX_COUNT)


def _time(value: datetime) -> datetime:
    """In UTC; a time without a zone is UTC. Raises BadFact where a clock was absurd."""
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise BadFact(f"{value.isoformat()} is not a time a request was served at; check the gateway's clock")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _json(findings: tuple[Finding, ...]) -> str:
    return msgspec.json.encode(findings).decode().replace("\\u0000", "\\ufffd")
