"""What a request used, written down exactly once whatever becomes of it."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from libs.events.usage import RequestRecord, Status
from services.gateway import metrics
from services.gateway.admission.budgets import BudgetHold
from services.gateway.admission.limits import limited
from services.gateway.admission.request import InferenceRequest
from services.gateway.cluster.gossip import Gossip
from services.gateway.cluster.views import Target
from services.gateway.core.admission.estimate import longest, plausible_tokens
from services.gateway.core.admission.shared_table import TableFull
from services.gateway.core.faults import busy, not_metered
from services.gateway.core.usage.engine_usage import (
    Answer,
    EngineUsage,
    TokenUsage,
    estimate_prompt,
    of_all_choices,
)
from services.gateway.usage.spool import Opened, Spool, SpoolBroken

log = logging.getLogger("llmgw.gateway")


class EngineRequest(NamedTuple):
    """What an engine was asked."""

    target: Target
    model: str
    body: bytes


class Meter:
    """The account of one request: opened before an engine is asked, closed before the last byte goes out."""

    __slots__ = (
        *("_closed", "_engine_usage", "_exchange", "_gossip", "_longest", "_max_tokens", "_model", "_request", "_slot"),
        *("_spool", "attempts", "failed_replicas", "first_token_ms", "hold", "prompt_tokens", "question", "replica_id"),
        *("stream", "tokens", "waited_ms"),
    )

    def __init__(self, spool: Spool, gossip: Gossip, request: InferenceRequest) -> None:
        parsed, served = request.parsed, request.served
        context_length = served.route.context_length
        self._spool = spool
        self._gossip = gossip
        self._request = request
        self._exchange = request.exchange
        self._model = served.route.model
        """That answers, or is asked."""
        self._max_tokens = plausible_tokens(parsed, request.body_bytes, context_length, served.max_tokens)
        """Prompt and completion tokens that an engine can have used."""
        self._longest = longest(parsed, context_length)
        """Tokens of one of its answers, at most."""
        self._slot: int | None = None
        self._closed = False
        self.stream = bool(parsed.stream)
        self.attempts = 0
        self.replica_id: str | None = None
        self.failed_replicas: tuple[str, ...] = ()
        """Asked before that one, and did not answer as they should."""
        self.waited_ms = 0.0
        """For an engine to be started."""
        self.first_token_ms: float | None = None
        self.tokens = 0
        """Delivered so far."""
        self._engine_usage: EngineUsage | None = None
        """What the engine said last that it used."""
        self.question: EngineRequest | None = None
        """The one that is being answered in a stream."""
        self.prompt_tokens: int | None = None
        """Counted by an engine, of an answer without an end."""
        self.hold: BudgetHold | None = None
        """What it holds of budgets."""

    def answered_by(self, model: str) -> None:
        """Another model than the one asked for is put to the request. Raises Fault (402): a budget is too short."""
        if self.hold is not None:
            self.hold.answered_by(model)
        self._model = model

    def open(self, replica_id: str) -> None:
        """Write that an engine is about to be asked, once for all engines. Raises Fault (503) when it cannot be
        written."""
        if self._slot is None:
            self._slot = self._opened()
        self.attempts += 1
        self.replica_id = replica_id

    def _opened(self) -> int:
        if self._spool.full:
            raise busy(self._spool.in_flight)
        request = self._request
        opened = Opened(
            request_id=self._exchange.request_id,
            opened_at=self._exchange.started_at,
            key_id=request.key.key_id,
            project=request.key.project,
            model_asked=request.parsed.model,
            model=self._model,
            protocol=request.operation.protocol,
            stream=self.stream,
            slot=0,
            body_bytes=request.body_bytes,
        )
        try:
            return self._spool.opened(opened)
        except SpoolBroken:
            raise not_metered() from None

    def delivering(self, tokens: int, usage: EngineUsage | None) -> None:
        """So many tokens in all will be with the client after the next write.

        ``usage``: what the engine said until now that it used; None where it says so at the end only.
        """
        self.tokens = tokens
        self._engine_usage = usage
        if self._slot is not None:
            self._spool.delivered(self._slot, tokens)

    def estimate(self) -> TokenUsage:
        """Of an answer without an end: what was delivered, and the prompt as an engine said, or else a guess at it."""
        if self.tokens and self._engine_usage is not None:
            used = self.believed(self._engine_usage.used())
            used.completion = max(used.completion, self.tokens)
            return used
        if not self.tokens:
            prompt = 0
        elif self.prompt_tokens is not None:
            prompt = self.prompt_tokens
        else:
            prompt = estimate_prompt(self._request.body_bytes)
        return TokenUsage(prompt=prompt, completion=self.tokens, estimated=True)

    def believed(self, used: TokenUsage, answer_bytes: int = 0) -> TokenUsage:
        """What an engine says was used, or what was counted here in its place where that cannot be; then it is marked
        as estimated. ``answer_bytes`` is the length of an answer that came in one piece."""
        used.cached = max(0, min(used.cached, used.prompt))
        used.reasoning = max(0, min(used.reasoning, used.completion))
        if used.within(self._max_tokens):
            return used
        log.warning(
            "%s says of request %s that it used %d prompt and %d completion tokens of at most %d and %d: counted here",
            *(self.replica_id, self._exchange.request_id, used.prompt, used.completion, *self._max_tokens),
        )
        metrics.IMPLAUSIBLE.labels(self._model).inc()
        counted = TokenUsage(prompt=used.prompt, completion=used.completion, estimated=True)
        if not 0 <= used.prompt <= self._max_tokens[0]:
            prompt = self.prompt_tokens
            if prompt is None:
                prompt = estimate_prompt(self._request.body_bytes)
            counted.prompt = min(prompt, self._max_tokens[0])
        if not 0 <= used.completion <= self._max_tokens[1]:
            counted.completion = min(max(self.tokens, answer_bytes // 4), self._max_tokens[1])
        return counted

    def correction(self, answer: Answer, answer_bytes: int) -> TokenUsage | None:
        """What an answer that came in one piece used, where its engine does not say that; None where it does, or says
        nothing."""
        if answer.usage is None:
            return None
        claimed = answer.usage.used()
        used = self.believed(of_all_choices(answer, self._longest) or claimed, answer_bytes)
        return used if used != claimed else None

    @property
    def unanswered(self) -> EngineRequest | None:
        """What an engine was asked that began to answer and has not said how long the prompt was."""
        return self.question if self.tokens and self._engine_usage is None and not self._closed else None

    @property
    def is_closed(self) -> bool:
        """Whether the record was written."""
        return self._closed

    def close(self, status: Status, http_status: int, used: TokenUsage | None = None) -> None:
        """Write the record; later calls change nothing."""
        if self._closed:
            return
        self._closed = True
        if used is None:
            used = self.estimate()
        elapsed_ms = self._exchange.elapsed_ms
        request = self._request
        record = RequestRecord(
            request_id=self._exchange.request_id,
            opened_at=self._exchange.started_at,
            closed_at=datetime.now(UTC),
            key_id=request.key.key_id,
            project=request.key.project,
            model_asked=request.parsed.model,
            model=self._model,
            protocol=request.operation.protocol,
            stream=self.stream,
            status=status,
            http_status=http_status,
            replica_id=self.replica_id,
            attempts=self.attempts,
            prompt_tokens=used.prompt,
            cached_tokens=used.cached,
            completion_tokens=used.completion,
            reasoning_tokens=used.reasoning,
            tokens_estimated=used.estimated,
            first_token_ms=self.first_token_ms,
            duration_ms=elapsed_ms,
            waited_ms=self.waited_ms,
            failed_replicas=self.failed_replicas,
        )
        position = self._spool.closed(self._slot, record)
        self._slot = None
        if self.hold is not None:
            self.hold.settle(record, position)
        self._exchange.attributes = {
            "gen_ai.provider.name": "llmgw",
            "gen_ai.request.model": request.parsed.model,
            "gen_ai.response.model": self._model,
            "gen_ai.usage.input_tokens": used.prompt,
            "gen_ai.usage.output_tokens": used.completion,
            "http.response.status_code": http_status,
            "llmgw.status": status,
        }
        self._count(used, http_status, elapsed_ms)

    def _count(self, used: TokenUsage, http_status: int, elapsed_ms: float) -> None:
        model = self._model
        if tokens := used.prompt + used.completion:
            now = time.monotonic()
            with suppress(TableFull):  # of a limit that came while the request was answered
                for name in limited(self._request.key):
                    self._gossip.counts.add(name, now, tokens=tokens)
        if self.attempts:
            self._gossip.last_used[model] = datetime.now(UTC)
        metrics.finished(
            self._request.operation.path,
            model,
            http_status,
            elapsed_ms / 1000,
            None if self.first_token_ms is None else self.first_token_ms / 1000,
            used,
        )
