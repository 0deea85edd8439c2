"""Chat and text completions, streamed and not: the way of a request from its bytes to its answer's."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import nullcontext

import msgspec

from libs.events.usage import Status
from libs.events.views import KeyView
from libs.runtime import traces
from services.gateway import metrics
from services.gateway.adapters.upstream import Abandoned, Connection, UpstreamFailure
from services.gateway.admission.budgets import Budgets
from services.gateway.admission.capabilities import Media, check, suits
from services.gateway.admission.checks import Checks, fits
from services.gateway.admission.limits import Limits
from services.gateway.cluster.gossip import Gossip
from services.gateway.cluster.views import (
    ApplicablePolicies,
    Policies,
    Routes,
    ServedModel,
)
from services.gateway.core import faults
from services.gateway.core.admission.estimate import answers_in, longest, plausible_tokens
from services.gateway.core.context_window import ContextExceeded
from services.gateway.core.engine_errors import fault_in
from services.gateway.core.errors import event_of
from services.gateway.core.faults import Fault
from services.gateway.core.json.duplicate_fields import refuse_duplicates
from services.gateway.core.json.lossless import repaired
from services.gateway.core.json.raw import present
from services.gateway.core.protocols.operations import EMBEDDINGS, MESSAGES, Operation
from services.gateway.core.protocols.translations import Events, Translation
from services.gateway.core.request import body as bodies
from services.gateway.core.request import messages
from services.gateway.core.request.body import ParsedRequest, PolicyText
from services.gateway.core.sse.event_stream import EventStream, Overlong
from services.gateway.core.sse.events import BadStream
from services.gateway.core.usage.engine_usage import answer_in, usage_object
from services.gateway.http.exchange import SSE, Exchange
from services.gateway.http.keepalive import KeepAlives
from services.gateway.http.router import Handler, Router, open_to
from services.gateway.usage.spool import Spool

from .answer_length import AnswerLength
from .dispatch import Dispatcher, RetryableFailure
from .metering import Meter, Question
from .prompt_count import PromptCount

log = logging.getLogger("llmgw.gateway")

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_TELLS_WHAT_STOPPED = {"verbose": b"true"}
"""llama.cpp's field with which it says which stop sequence was met; others say so unasked."""
CLIENT_LEFT = 499
"""nginx's status for a client that closed the connection before there was an answer."""


class Inference:
    """Answers requests of any kind in ``core.kinds``."""

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
        engines: Dispatcher,
        keep_alives: KeepAlives,
        max_body_bytes: int,
        shorten_answers: bool,
        forward_headers: tuple[str, ...],
    ) -> None:
        self._router = router
        self._routes = routes
        self._policies = policies
        self._gossip = gossip
        self._limits = Limits(gossip)
        self._budgets = budgets
        self._spool = spool
        self._checks = checks
        self._engines = engines
        self._prompt_count = PromptCount(engines)
        self._room = AnswerLength(self._prompt_count, shorten_answers)
        self._keep_alives = keep_alives
        self._max_body_bytes = max_body_bytes
        self._tracing = traces.recording()
        self._forward = tuple(name.lower().encode() for name in forward_headers)

    def of(self, kind: Operation) -> Handler:
        async def handler(exchange: Exchange) -> None:
            if not self._tracing:
                await self._answer(exchange, kind)
                return
            parent = {"traceparent": exchange.traceparent.decode("latin-1")} if exchange.traceparent else None
            attributes = {"gen_ai.operation.name": kind.operation, "llmgw.request_id": exchange.request_id}
            with traces.span(f"{exchange.method} {kind.path}", parent, "server", attributes) as span:
                outgoing: dict[str, str] = {}
                traces.inject(outgoing)
                exchange.traceparent = outgoing.get("traceparent", "").encode() or None
                try:
                    await self._answer(exchange, kind)
                finally:
                    span.set_attributes(exchange.attributes)

        return handler

    async def _answer(self, exchange: Exchange, kind: Operation) -> None:
        key = self._router.authenticate(exchange, "client")
        if self._routes.stopped is not None:
            raise faults.stopped("", "system_stopped", self._routes.stopped)
        meter = Meter(self._spool, self._gossip, exchange, kind, key)
        # Every request with a valid key counts, also one that is refused for what is in it.
        refusal = self._limits.refusal(exchange, key)
        try:
            body, media, translation, parsed, served = await self._understood(exchange, kind, key)
        except Fault:
            if refusal is not None:
                raise refusal from None
            raise
        route = served.route
        most = plausible_tokens(parsed, len(body), route.context_length, served.max_tokens)
        meter.about(
            parsed.model, route.model, bool(parsed.stream), len(body), most, longest(parsed, route.context_length)
        )
        try:
            if refusal is not None:
                raise refusal
            if key.budgets:
                meter.hold = self._budgets.hold(key, kind, parsed, served, len(body), exchange.started_at)
            try:
                body = await self._judged(exchange, key, parsed, served, body)
            except RecursionError:
                raise faults.too_deep() from None
            with self._keep_alives.during(exchange) if parsed.stream else nullcontext():
                await self._ask(exchange, kind, key, meter, parsed, media, served, body, translation)
        except Fault as fault:
            if fault.code == "context_length_exceeded" and not (fault.param or "").startswith(f"{kind.text}."):
                fault.param = kind.text
            meter.close(_status_of(fault), exchange.status or fault.status)
            if not exchange.answered:
                raise
            metrics.ERRORS.labels(str(fault.status)).inc()
            await exchange.write(_saying(translation).fail(fault), False)
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

    # before an engine is asked

    async def _understood(
        self, exchange: Exchange, kind: Operation, key: KeyView
    ) -> tuple[bytes, Media | None, Translation | None, ParsedRequest, ServedModel]:
        """The request, as far as it can be answered. Raises Fault (400, 404, 413, 503), Abandoned."""
        body = repaired(await exchange.body(self._max_body_bytes))
        refuse_duplicates(body)
        media = messages.media(body)
        translation = None
        if kind.translate is not None:
            translation = kind.translate(body, exchange.request_id.removeprefix("req-"), time.time)
            exchange.warn(translation.warnings)
            body = translation.body
        parsed = bodies.read(body, kind.content, translation is not None)
        served = open_to(self._routes, key, parsed.model)
        if served.route.stopped is not None:
            raise faults.stopped(served.route.model, served.route.stopped, served.route.stopped_reason)
        body = self._room.within(exchange, kind, parsed, served, body)
        check(parsed, media, served, kind)
        return body, media, translation, parsed, served

    async def _judged(
        self, exchange: Exchange, key: KeyView, parsed: ParsedRequest, served: ServedModel, body: bytes
    ) -> bytes:
        """The body as it may go to the engine. Raises Fault when a policy refuses it."""
        changes: dict[str, bytes | None] = {}
        if parsed.model != served.route.model:
            changes["model"] = msgspec.json.encode(served.route.model)
        if parsed.stream and not parsed.wants_usage:
            changes["stream_options"] = bodies.asking_usage(parsed, body)
        applicable = self._policies.applicable(key.policies)
        if applicable is not None:
            changes |= await self._ruled(exchange, key, applicable, bodies.readable(body))
        return bodies.edited(body, changes) if changes else body

    async def _ruled(
        self, exchange: Exchange, key: KeyView, applicable: ApplicablePolicies, readable: PolicyText
    ) -> dict[str, bytes | None]:
        """What the guard changes of the body. Raises Fault when it refuses it, or cannot judge what it must."""
        if applicable.missing:
            raise faults.no_such_policy(applicable.missing[0])
        segments = readable.segments()
        if not applicable.enforced:
            self._checks.observe(exchange.request_id, key.project, applicable.names, segments)
            return {}
        if (field := readable.unreadable) is not None:
            raise faults.not_judgeable(field)
        if not fits(segments):
            raise faults.too_long_to_judge()
        verdict = await self._checks.judge(exchange.request_id, key.project, applicable.names, segments)
        if verdict is not None and not verdict.allow:
            raise faults.refused_by_policy(verdict.rule or "unnamed", verdict.policy)
        if verdict is not None:
            try:
                return readable.edit(verdict.edits)
            except (LookupError, ValueError, TypeError) as error:
                log.error("an edit of the guard does not fit the request %s: %s", exchange.request_id, error)
        if applicable.fail_closed:
            raise faults.not_judged()
        return {}

    # the engine's answer

    async def _ask(
        self,
        exchange: Exchange,
        kind: Operation,
        key: KeyView,
        meter: Meter,
        parsed: ParsedRequest,
        media: Media | None,
        served: ServedModel,
        body: bytes,
        translation: Translation | None,
    ) -> None:
        shortened = False
        attempts = self._engines.attempts(served.route.model, meter, exchange)
        while True:
            target = attempts.next()
            if target is None:
                model = attempts.model
                target = await attempts.otherwise(exchange, lambda other: suits(key, parsed, media, other, kind))
                if attempts.model != model:
                    body = bodies.edited(body, {"model": msgspec.json.encode(attempts.model)})
                    exchange.served_by(attempts.model)
            question = Question(target, attempts.model, body)
            try:
                try:
                    await self._put(exchange, kind, key, meter, parsed, question, translation)
                except ContextExceeded as fault:
                    if kind is EMBEDDINGS:
                        await self._name_input(question, self._routes.find(attempts.model) or served)
                    if shortened or exchange.delivered:
                        raise
                    shortened = True
                    body = await self._room.shortened(exchange, kind, parsed, question, fault)
                    await self._put(exchange, kind, key, meter, parsed, question._replace(body=body), translation)
                return
            except RetryableFailure as problem:
                if exchange.delivered:
                    return  # the client was told in the stream
                attempts.failed(problem.failed)

    async def _put(
        self,
        exchange: Exchange,
        kind: Operation,
        key: KeyView,
        meter: Meter,
        parsed: ParsedRequest,
        question: Question,
        translation: Translation | None,
    ) -> None:
        """Ask one endpoint, and answer the client."""
        body = question.body
        if kind is MESSAGES and parsed.stop and question.target.endpoint.engine == "llamacpp":
            body = bodies.edited(body, _TELLS_WHAT_STOPPED)
        further: tuple[str, bytes] | None = (kind.engine_path, body)
        while further is not None:
            async with self._engines.asked(
                question.target, exchange, key.key_id, *further, self._extra(exchange)
            ) as connection:
                if parsed.stream and connection.content_type.startswith(b"text/event-stream"):
                    meter.question = question
                    await self._stream(exchange, meter, parsed, translation, connection)
                    further = None
                else:
                    further = await self._whole(exchange, meter, translation, further, connection)

    async def _name_input(self, question: Question, served: ServedModel) -> None:
        """Raises Fault naming the input that is too long, where it can be found out."""
        limit = served.route.context_length
        found = await self._prompt_count.too_long(question, limit)
        if found is not None:
            raise faults.input_too_long(f"input.{found[0]}", found[1], limit) from None

    def _extra(self, exchange: Exchange) -> bytes:
        extra = b"x-request-id: %s\r\n" % exchange.request_id.encode()
        if exchange.traceparent:
            extra += b"traceparent: %s\r\n" % exchange.traceparent
            if exchange.tracestate:
                extra += b"tracestate: %s\r\n" % exchange.tracestate
        if self._forward:
            extra += exchange.forwarded(self._forward)
        return extra

    async def _whole(
        self,
        exchange: Exchange,
        meter: Meter,
        translation: Translation | None,
        question: tuple[str, bytes],
        connection: Connection,
    ) -> tuple[str, bytes] | None:
        """An answer that comes in one piece: until it is all here, another endpoint may still be asked.

        What is to be asked of the same engine next, None when that was all and the client has its answer.
        """
        payload = repaired(await connection.read_all(MAX_ANSWER_BYTES))
        if exchange.answered:
            raise UpstreamFailure("odd", "the answer is no stream, and one has begun")
        answer = answer_in(payload)
        estimated = False
        if answer is not None and (corrected := meter.correction(answer, len(payload))) is not None:
            estimated = corrected.estimated
            payload = bodies.edited(payload, {"usage": msgspec.json.encode(usage_object(corrected))})
            answer = answer_in(payload)
        if answer is not None and present(answer.error) and not present(answer.choices):
            raise self._engines.refusal(fault_in(payload, 502))
        if translation is None:
            if answer is None:
                odd = payload.lstrip()[:1] == b"{"
                raise UpstreamFailure("odd" if odd else "protocol", "the answer is not a JSON object")
            used = answer.usage.used() if answer.usage is not None else None
        else:
            try:
                if (further := translation.further(*question, payload)) is not None:
                    return further
                payload, used = translation.whole(payload), translation.used(payload)
            except (BadStream, RecursionError) as error:
                raise UpstreamFailure("odd", str(error)) from None
        if used is None:
            meter.tokens = max(1, len(payload) // 4)
            used = meter.estimate()
        used = meter.believed(used, len(payload))
        used.estimated = used.estimated or estimated
        meter.close("ok", 200, used)
        await exchange.answer(200, payload)
        return None

    async def _stream(
        self,
        exchange: Exchange,
        meter: Meter,
        parsed: ParsedRequest,
        translation: Translation | None,
        connection: Connection,
    ) -> None:
        # ``events`` finds and counts what the engine sends, ``say`` makes of it what the client reads.
        events = EventStream(parsed.wants_usage or translation is not None, answers_in(parsed))
        say = _saying(translation)
        try:
            out = await self._passed(exchange, meter, events, say, connection)
        except UpstreamFailure as failure:
            if exchange.delivered:
                fault = faults.stopping() if failure.kind == "stopping" else faults.upstream_broken()
                await self._cut_short(exchange, meter, events, say, b"", fault)
            raise
        await self._end(exchange, meter, events, say, out)

    async def _passed(
        self, exchange: Exchange, meter: Meter, events: EventStream, say: Events, connection: Connection
    ) -> bytes:
        """All but the last events, as they come; the rest of what there is. Raises UpstreamFailure."""

        def passed(data: bytes) -> bytes | None:
            """Pass events on; back comes what can not, or not yet, be passed on: the last ones, to one who waits."""
            out = say.feed(events.feed(data))
            if events.finished or events.failure is not None or exchange.waits:
                return out
            if out:
                meter.delivering(events.tokens, events.usage)
                exchange.push(out)
            return None

        try:
            out: bytes | None = say.feed(await self._first(events, connection))
            connection.deadline = None
            meter.first_token_ms = exchange.elapsed_ms
            while out is not None and not events.finished and events.failure is None:
                if out:
                    meter.delivering(events.tokens, events.usage)
                    if not exchange.answered:
                        await exchange.begin(200, SSE)
                    await exchange.write(out, True)
                if exchange.delivered:
                    out = await connection.pour(passed)
                else:
                    data = await connection.read()
                    out = say.feed(events.feed(data)) if data else None
        except (Overlong, BadStream, RecursionError) as error:
            raise UpstreamFailure("odd", str(error)) from None
        return out or b""

    async def _first(self, events: EventStream, connection: Connection) -> bytes:
        """The events up to the first one with content. An error before it is the endpoint's or the request's."""
        while True:
            data = await connection.read()
            if not data:
                raise UpstreamFailure("closed", "the stream ended before its first token")
            out = events.feed(data)
            if events.failure is not None and not events.started:
                raise self._engines.refusal(fault_in(events.failure, 502))
            if events.started:
                return out

    async def _end(self, exchange: Exchange, meter: Meter, events: EventStream, say: Events, out: bytes) -> None:
        """The last write: closed in the spool before it is made."""
        if events.failure is not None:
            fault = fault_in(events.failure, 502)
            await self._cut_short(exchange, meter, events, say, out, fault)
            raise RetryableFailure(
                "an error in the stream", lambda: fault, "nobody" if fault.status < 500 else "perhaps"
            )
        if not events.complete:
            await self._cut_short(exchange, meter, events, say, out, faults.upstream_broken())
            raise UpstreamFailure("closed", "the stream ended without an end")
        meter.delivering(events.tokens, events.usage)
        said = events.used()
        used = meter.believed(said) if said is not None else meter.estimate()
        out += say.feed(events.close(used))
        meter.close("ok", 200, used)
        if not exchange.answered:
            await exchange.begin(200, SSE)
        await exchange.write(out, False)

    async def _cut_short(
        self, exchange: Exchange, meter: Meter, events: EventStream, say: Events, out: bytes, fault: Fault
    ) -> None:
        """The engine failed after content went out: say so in the stream."""
        meter.delivering(events.tokens, events.usage)
        await self._prompt_count.prompt_of(meter)
        meter.close("upstream_error", 200)
        if not exchange.answered:
            await exchange.begin(200, SSE)
        await exchange.write(out + say.fail(fault), False)


class _Untranslated:
    """The events of an engine for a client that speaks what it speaks."""

    def feed(self, data: bytes) -> bytes:
        return data

    def fail(self, fault: Fault) -> bytes:
        return event_of(fault)


UNTRANSLATED = _Untranslated()


def _saying(translation: Translation | None) -> Events:
    return translation.events() if translation is not None and translation.events is not None else UNTRANSLATED


STATUS_OF: dict[str | None, Status] = {
    "rate_limit_exceeded": "refused_limit",
    "budget_exceeded": "refused_budget",
    "content_policy": "refused_guard",
    "guard_unavailable": "refused_guard",
    "policy_missing": "refused_guard",
}


def _status_of(fault: Fault) -> Status:
    return STATUS_OF.get(fault.code) or ("client_error" if fault.status < 500 else "upstream_error")
