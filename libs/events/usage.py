"""What was answered, and what it used. Facts of the gateways; never text."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from .contract import Contract, Telemetry, Value, registered

Status = Literal[
    "ok",  # the whole answer went out
    "cancelled",  # the client left
    "cut",  # the gateway died while answering
    "client_error",  # the engine or the gateway refused the request as malformed
    "upstream_error",  # the engine failed, before or during the answer
    "refused_limit",
    "refused_guard",
    "refused_budget",
]
CHARGED: frozenset[Status] = frozenset({"ok", "cancelled", "cut"})
"""What is charged: answers, whole or in part. A request that was refused or that an engine failed is free,
whatever the engine said it counted."""


Protocol = Literal[
    "openai.chat",
    "openai.completions",
    "openai.responses",
    "openai.embeddings",
    "anthropic.messages",
    "rerank",
    "tokenize",
]
"""What the client spoke, and of what."""


class RequestRecord(Value, frozen=True, kw_only=True):
    """One request, finished. Attempts are counted in it; they are not records of their own."""

    request_id: str
    opened_at: datetime
    closed_at: datetime
    key_id: str
    project: str
    """``org/team/project`` at that time."""
    model_asked: str
    model: str
    """The model that answered, or would have."""
    protocol: Protocol
    stream: bool = False
    status: Status
    http_status: int = 200
    replica_id: str | None = None
    attempts: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Counted inside ``prompt_tokens``."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Counted inside ``completion_tokens``."""
    tokens_estimated: bool = False
    """The engine's own count was not seen, or cannot be: content events were counted, the prompt's length was
    estimated."""
    first_token_ms: float | None = None
    duration_ms: float = 0.0
    waited_ms: float = 0.0
    """Of these, before there was an engine to ask: a model on demand was started."""
    failed_replicas: tuple[str, ...] = ()
    """Asked before ``replica_id``, and did not answer as they should."""


@registered
class UsageBatch(Contract, frozen=True, kw_only=True, tag="use.gateway.batch.v1"):
    """Requests that finished at one gateway, in the order of its spool."""

    plane = "use"
    ids = ("gateway_id",)
    gateway_id: str
    offset: int
    """Position in the gateway's spool after these records."""
    records: tuple[RequestRecord, ...]


class Held(Value, frozen=True, kw_only=True):
    """What a gateway of an earlier version holds of a budget; see ``Holding``."""

    reserved: int = 0
    settled: int = 0
    counted: int = 0
    until: int = 0


@registered
class GatewayRates(Telemetry, frozen=True, kw_only=True, tag="tel.gateway.rates.v1"):
    """What one gateway is doing, twice a second: for the scheduler, and for the choice of an endpoint."""

    ids = ("gateway_id",)
    gateway_id: str
    requests: dict[str, int] = {}
    """Of an earlier version, as ``tokens`` and ``budgets``: ``GatewayHoldings`` says it."""
    tokens: dict[str, int] = {}
    in_flight: dict[str, int] = {}
    """Replica id to requests in flight."""
    last_used: dict[str, datetime] = {}
    """Model to when a request for it last finished."""
    waiting: dict[str, int] = {}
    """Model to requests that wait in the gateway for a replica of it."""
    budgets: dict[str, Held] = {}


class Holding(Value, frozen=True, kw_only=True):
    """What a gateway knows of an account in a period, in micro-units. Whose ``ledger`` is the highest knows best what
    was spent; to that comes what every gateway holds and that ledger does not have."""

    reserved: int = 0
    """For requests that are being answered: the most they may cost."""
    settled: int = 0
    """For requests that ended and are not in ``spent``: what they cost."""
    until: int = 0
    """A ledger that is complete up to here has what is settled; 0: some of it is not in USAGE yet."""
    ledger: int = 0
    """``Spend.ledger`` of the account, as far as this gateway has read it."""
    spent: int = 0
    """By that."""


class Holdings(Telemetry, frozen=True, kw_only=True, tag="telemetry.v0"):
    """What one gateway counts and holds. Figures are absolute; 0 and a holding of nothing end what was said before."""

    gateway_id: str
    host: str
    """Gateways of one host know of each other without the bus."""
    life: int
    """Rises each time the gateway is started."""
    number: int
    """Of the message in this life; what has a lower one is older."""
    epoch: str = ""
    """Of the stream that ``until`` and ``ledger`` are sequences of."""
    requests: dict[str, int] = {}
    """Requests in the last minute, by key id and by project (``org/team/project``), where there is a limit; ``tokens``
    likewise."""
    tokens: dict[str, int] = {}
    budgets: dict[str, Holding] = {}
    """By account and period (``k-01j9 2026-11``), where it holds anything."""


@registered
class GatewayHoldings(Holdings, frozen=True, kw_only=True, tag="tel.gateway.holdings.v1"):
    """All that a gateway holds, in as many messages as it takes: once a second, more rarely where it is very much."""

    ids = ("gateway_id", "part")
    part: int = 0
    """Of the messages that say it together, which this one is, from 0."""
    parts: int = 1
    leaving: bool = False
    """It stops: it will admit nothing more."""


@registered
class GatewayChanges(Holdings, frozen=True, kw_only=True, tag="tel.gateway.changes.v1"):
    """What has changed since a gateway's last message; at once where a limit or a budget is nearly used up."""

    ids = ("gateway_id",)
    asks: bool = False
    """It waits to know that this was heard: the others say something at once too."""
