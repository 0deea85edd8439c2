"""The way of a request to an engine, from its key to the record of what it used."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from libs.events.usage import Status
from libs.runtime import traces
from services.gateway import metrics
from services.gateway.adapters.upstream import Abandoned
from services.gateway.admission.budgets import Budgets
from services.gateway.admission.checks import Checks
from services.gateway.admission.limits import Limits
from services.gateway.admission.policies import PolicyEnforcement
from services.gateway.admission.request import InferenceRequest, read_request
from services.gateway.cluster.gossip import Gossip
from services.gateway.cluster.views import Policies, Routes
from services.gateway.core import faults
from services.gateway.core.faults import Fault
from services.gateway.core.protocols.operations import Operation
from services.gateway.http.exchange import Exchange
from services.gateway.http.keepalive import KeepAlives
from services.gateway.http.router import Handler, Router
from services.gateway.usage.spool import Spool

from .answer_length import AnswerLength
from .dispatch import Dispatcher, RetryableFailure
from .metering import Meter
from .prompt_count import PromptCount
from .relay import Relay, client_events

CLIENT_LEFT = 499
"""nginx's status for a client that closed the connection before there was an answer."""


class Inference:
    """Answers requests of every operation in ``core.protocols.operations``."""

    def __init__(
        self,
        *,
        router: Router,
        routes: Routes,
        policies: Policies,
        gossip: Gossip,
        budgets: Budgets,
        spool: Spool,
        checks: Checks,
        dispatcher: Dispatcher,
        keep_alives: KeepAlives,
        max_body_bytes: int,
        shorten_answers: bool,
    ) -> None:
        self._router = router
        self._routes = routes
        self._policies = policies
        self._enforcement = PolicyEnforcement(checks)
        self._gossip = gossip
        self._limits = Limits(gossip)
        self._budgets = budgets
        self._spool = spool
        self._dispatcher = dispatcher
        self._prompt_count = PromptCount(dispatcher)
        self._answer_length = AnswerLength(self._prompt_count, shorten_answers)
        self._relay = Relay(routes, dispatcher, self._prompt_count, self._answer_length)
        self._keep_alives = keep_alives
        self._max_body_bytes = max_body_bytes

    def handler(self, operation: Operation) -> Handler:
        """What answers the requests of an operation."""

        async def answer(exchange: Exchange) -> None:
            await self._answer(exchange, operation)

        async def answer_traced(exchange: Exchange) -> None:
            parent = {"traceparent": exchange.traceparent.decode("latin-1")} if exchange.traceparent else None
            attributes = {"gen_ai.operation.name": operation.telemetry_name, "llmgw.request_id": exchange.request_id}
            with traces.span(f"{exchange.method} {operation.path}", parent, "server", attributes) as span:
                outgoing: dict[str, str] = {}
                traces.inject(outgoing)
                exchange.traceparent = outgoing.get("traceparent", "").encode() or None
                try:
                    await self._answer(exchange, operation)
                finally:
                    span.set_attributes(exchange.attributes)

        return answer_traced if traces.recording() else answer

    async def _answer(self, exchange: Exchange, operation: Operation) -> None:
        """Raises Fault where the client has no answer yet, Abandoned where it has left."""
        key = self._router.authenticate(exchange, "client")
        if self._routes.stopped is not None:
            raise faults.stopped("", "system_stopped", self._routes.stopped)
        # Every request with a valid key counts, also one that is refused for what is in it.
        over_limit = self._limits.refusal(exchange, key)
        try:
            request = await read_request(exchange, operation, key, self._routes, self._max_body_bytes)
            self._answer_length.fit_model(request)
            request.check(request.served)
        except Fault:
            if over_limit is not None:
                raise over_limit from None
            raise
        meter = Meter(self._spool, self._gossip, request)
        try:
            if over_limit is not None:
                raise over_limit
            if key.budgets:
                meter.hold = self._budgets.hold(request)
            changes = request.engine_fields()
            if (policies := self._policies.applicable(key.policies)) is not None:
                changes |= await self._enforcement.changes(request, policies)
            request.edit(changes)
            with self._keep_alives.during(exchange) if meter.stream else nullcontext():
                await self._ask(request, meter)
        except Fault as fault:
            await self._fail(request, meter, fault)
            if not exchange.answered:
                raise
        except Abandoned:
            try:
                await self._prompt_count.prompt_of(meter)
            finally:
                meter.close("cancelled", exchange.status or CLIENT_LEFT)
            raise
        except asyncio.CancelledError:
            # The gateway stops and waited long enough.
            meter.close("cut", exchange.status or 503)
            raise
        except Exception:
            meter.close("upstream_error", exchange.status or 500)
            raise

    async def _ask(self, request: InferenceRequest, meter: Meter) -> None:
        """Ask endpoints until one has answered. Raises Fault when none does, Abandoned."""
        attempts = self._dispatcher.attempts(request, meter)
        while True:
            target = attempts.next() or await attempts.fallback()
            meter.open(target.replica_id)  # in the spool, before an engine is asked
            try:
                await self._relay.answer(request, meter, target, attempts.model)  # closes it before the last byte
                return
            except RetryableFailure as problem:
                if request.exchange.delivered:
                    return  # the client was told in the stream
                attempts.failed(problem.failure)

    async def _fail(self, request: InferenceRequest, meter: Meter, fault: Fault) -> None:
        """Record that a request is not answered, and say so in the stream where one has begun."""
        exchange, text_field = request.exchange, request.operation.text_field
        if fault.code == "context_length_exceeded" and not (fault.param or "").startswith(f"{text_field}."):
            fault.param = text_field
        meter.close(_status_of(fault), exchange.status or fault.status)
        if exchange.answered:
            metrics.ERRORS.labels(str(fault.status)).inc()
            await exchange.write(client_events(request.translation).fail(fault), False)


_STATUS_OF_CODE: dict[str | None, Status] = {
    "rate_limit_exceeded": "refused_limit",
    "budget_exceeded": "refused_budget",
    "content_policy": "refused_guard",
    "guard_unavailable": "refused_guard",
    "policy_missing": "refused_guard",
}


def _status_of(fault: Fault) -> Status:
    return _STATUS_OF_CODE.get(fault.code) or ("client_error" if fault.status < 500 else "upstream_error")
