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
from services.gateway.cluster.gossip import Rates
from services.gateway.cluster.views import (
    Applicable,
    Policies,
    Routes,
    Served,
)
from services.gateway.core import errors
from services.gateway.core.admission.estimate import answers_in, longest, plausible_tokens
from services.gateway.core.context_window import ContextExceeded
from services.gateway.core.engine_errors import fault_in
from services.gateway.core.errors import Fault, event_of
from services.gateway.core.json.duplicate_fields import refuse_doubles
from services.gateway.core.json.lossless import mended
from services.gateway.core.json.raw import present
from services.gateway.core.protocols.operations import EMBEDDINGS, MESSAGES, Kind
from services.gateway.core.protocols.translations import Events, Spoken
from services.gateway.core.request import body as bodies
from services.gateway.core.request import messages
from services.gateway.core.request.body import Asked, Readable
from services.gateway.core.sse.event_stream import EventStream, Overlong
from services.gateway.core.sse.events import BadStream
from services.gateway.core.usage.engine_usage import answer_in, usage_object
from services.gateway.http.exchange import SSE, Call
from services.gateway.http.keepalive import KeepAlives
from services.gateway.http.router import Door, Handler, open_to
from services.gateway.usage.spool import Spool

from .answer_length import Room
from .dispatch import Engines, Retryable
from .metering import Meter, Question
from .prompt_count import Recount

log = logging.getLogger("llmgw.gateway")

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_TELLS_WHAT_STOPPED = {"verbose": b"true"}
"""llama.cpp's field with which it says which stop sequence was met; others say so unasked."""
CLIENT_LEFT = 499
"""nginx's status for a client that closed the connection before there was an answer."""


class Completions:
    """Answers requests of any kind in ``core.kinds``."""

    def __init__(
        self,
        *,
        door: Door,
        routes: Routes,
        policies: Policies,
        rates: Rates,
        budgets: Budgets,
        spool: Spool,
        checks: Checks,
        engines: Engines,
        keep_alives: KeepAlives,
        max_body_bytes: int,
        shorten_answers: bool,
        forward_headers: tuple[str, ...],
    ) -> None:
        self._door = door
        self._routes = routes
        self._policies = policies
        self._rates = rates
        self._limits = Limits(rates)
        self._budgets = budgets
        self._spool = spool
        self._checks = checks
        self._engines = engines
        self._recount = Recount(engines)
        self._room = Room(self._recount, shorten_answers)
        self._keep_alives = keep_alives
        self._max_body_bytes = max_body_bytes
        self._tracing = traces.recording()
        self._forward = tuple(name.lower().encode() for name in forward_headers)

    def of(self, kind: Kind) -> Handler:
        async def handler(call: Call) -> None:
            if not self._tracing:
                await self._answer(call, kind)
                return
            parent = {"traceparent": call.traceparent.decode("latin-1")} if call.traceparent else None
            attributes = {"gen_ai.operation.name": kind.operation, "llmgw.request_id": call.request_id}
            with traces.span(f"{call.method} {kind.path}", parent, "server", attributes) as span:
                outgoing: dict[str, str] = {}
                traces.inject(outgoing)
                call.traceparent = outgoing.get("traceparent", "").encode() or None
                try:
                    await self._answer(call, kind)
                finally:
                    span.set_attributes(call.attributes)

        return handler

    async def _answer(self, call: Call, kind: Kind) -> None:
        key = self._door.authenticate(call, "client")
        if self._routes.stopped is not None:
            raise errors.stopped("", "system_stopped", self._routes.stopped)
        meter = Meter(self._spool, self._rates, call, kind, key)
        # Every request with a valid key counts, also one that is refused for what is in it.
        refusal = self._limits.refusal(call, key)
        try:
            body, media, spoken, asked, served = await self._understood(call, kind, key)
        except Fault:
            if refusal is not None:
                raise refusal from None
            raise
        route = served.route
        most = plausible_tokens(asked, len(body), route.context_length, served.max_tokens)
        meter.about(asked.model, route.model, bool(asked.stream), len(body), most, longest(asked, route.context_length))
        try:
            if refusal is not None:
                raise refusal
            if key.budgets:
                meter.hold = self._budgets.hold(key, kind, asked, served, len(body), call.started_at)
            try:
                body = await self._judged(call, key, asked, served, body)
            except RecursionError:
                raise errors.too_deep() from None
            with self._keep_alives.during(call) if asked.stream else nullcontext():
                await self._ask(call, kind, key, meter, asked, media, served, body, spoken)
        except Fault as fault:
            if fault.code == "context_length_exceeded" and not (fault.param or "").startswith(f"{kind.text}."):
                fault.param = kind.text
            meter.close(_status_of(fault), call.status or fault.status)
            if not call.answered:
                raise
            metrics.ERRORS.labels(str(fault.status)).inc()
            await call.write(_saying(spoken).fail(fault), False)
        except Abandoned:
            try:
                await self._recount.prompt_of(meter)
            finally:
                meter.close("cancelled", call.status or CLIENT_LEFT)
            raise
        except asyncio.CancelledError:
            # The gateway stops and waited long enough.
            meter.close("cut", call.status or 503)
            raise
        except Exception:
            meter.close("upstream_error", call.status or 500)
            raise

    # before an engine is asked

    async def _understood(
        self, call: Call, kind: Kind, key: KeyView
    ) -> tuple[bytes, Media | None, Spoken | None, Asked, Served]:
        """The request, as far as it can be answered. Raises Fault (400, 404, 413, 503), Abandoned."""
        body = mended(await call.body(self._max_body_bytes))
        refuse_doubles(body)
        media = messages.media(body)
        spoken = None
        if kind.dialect is not None:
            spoken = kind.dialect(body, call.request_id.removeprefix("req-"), time.time)
            call.warn(spoken.warnings)
            body = spoken.body
        asked = bodies.read(body, kind.content, spoken is not None)
        served = open_to(self._routes, key, asked.model)
        if served.route.stopped is not None:
            raise errors.stopped(served.route.model, served.route.stopped, served.route.stopped_reason)
        body = self._room.within(call, kind, asked, served, body)
        check(asked, media, served, kind)
        return body, media, spoken, asked, served

    async def _judged(self, call: Call, key: KeyView, asked: Asked, served: Served, body: bytes) -> bytes:
        """The body as it may go to the engine. Raises Fault when a policy refuses it."""
        changes: dict[str, bytes | None] = {}
        if asked.model != served.route.model:
            changes["model"] = msgspec.json.encode(served.route.model)
        if asked.stream and not asked.wants_usage:
            changes["stream_options"] = bodies.asking_usage(asked, body)
        applicable = self._policies.applicable(key.policies)
        if applicable is not None:
            changes |= await self._ruled(call, key, applicable, bodies.readable(body))
        return bodies.edited(body, changes) if changes else body

    async def _ruled(
        self, call: Call, key: KeyView, applicable: Applicable, readable: Readable
    ) -> dict[str, bytes | None]:
        """What the guard changes of the body. Raises Fault when it refuses it, or cannot judge what it must."""
        if applicable.missing:
            raise errors.no_such_policy(applicable.missing[0])
        segments = readable.segments()
        if not applicable.enforced:
            self._checks.observe(call.request_id, key.project, applicable.names, segments)
            return {}
        if (field := readable.unreadable) is not None:
            raise errors.not_judgeable(field)
        if not fits(segments):
            raise errors.too_long_to_judge()
        verdict = await self._checks.judge(call.request_id, key.project, applicable.names, segments)
        if verdict is not None and not verdict.allow:
            raise errors.refused_by_policy(verdict.rule or "unnamed", verdict.policy)
        if verdict is not None:
            try:
                return readable.edit(verdict.edits)
            except (LookupError, ValueError, TypeError) as error:
                log.error("an edit of the guard does not fit the request %s: %s", call.request_id, error)
        if applicable.fail_closed:
            raise errors.not_judged()
        return {}

    # the engine's answer

    async def _ask(
        self,
        call: Call,
        kind: Kind,
        key: KeyView,
        meter: Meter,
        asked: Asked,
        media: Media | None,
        served: Served,
        body: bytes,
        spoken: Spoken | None,
    ) -> None:
        shortened = False
        attempts = self._engines.attempts(served.route.model, meter, call)
        while True:
            target = attempts.next()
            if target is None:
                model = attempts.model
                target = await attempts.otherwise(call, lambda other: suits(key, asked, media, other, kind))
                if attempts.model != model:
                    body = bodies.edited(body, {"model": msgspec.json.encode(attempts.model)})
                    call.served_by(attempts.model)
            question = Question(target, attempts.model, body)
            try:
                try:
                    await self._put(call, kind, key, meter, asked, question, spoken)
                except ContextExceeded as fault:
                    if kind is EMBEDDINGS:
                        await self._name_input(question, self._routes.find(attempts.model) or served)
                    if shortened or call.delivered:
                        raise
                    shortened = True
                    body = await self._room.shortened(call, kind, asked, question, fault)
                    await self._put(call, kind, key, meter, asked, question._replace(body=body), spoken)
                return
            except Retryable as problem:
                if call.delivered:
                    return  # the client was told in the stream
                attempts.failed(problem.failed)

    async def _put(
        self,
        call: Call,
        kind: Kind,
        key: KeyView,
        meter: Meter,
        asked: Asked,
        question: Question,
        spoken: Spoken | None,
    ) -> None:
        """Ask one endpoint, and answer the client."""
        body = question.body
        if kind is MESSAGES and asked.stop and question.target.endpoint.engine == "llamacpp":
            body = bodies.edited(body, _TELLS_WHAT_STOPPED)
        further: tuple[str, bytes] | None = (kind.engine_path, body)
        while further is not None:
            async with self._engines.asked(
                question.target, call, key.key_id, *further, self._extra(call)
            ) as connection:
                if asked.stream and connection.content_type.startswith(b"text/event-stream"):
                    meter.question = question
                    await self._stream(call, meter, asked, spoken, connection)
                    further = None
                else:
                    further = await self._whole(call, meter, spoken, further, connection)

    async def _name_input(self, question: Question, served: Served) -> None:
        """Raises Fault naming the input that is too long, where it can be found out."""
        limit = served.route.context_length
        found = await self._recount.too_long(question, limit)
        if found is not None:
            raise errors.input_too_long(f"input.{found[0]}", found[1], limit) from None

    def _extra(self, call: Call) -> bytes:
        extra = b"x-request-id: %s\r\n" % call.request_id.encode()
        if call.traceparent:
            extra += b"traceparent: %s\r\n" % call.traceparent
            if call.tracestate:
                extra += b"tracestate: %s\r\n" % call.tracestate
        if self._forward:
            extra += call.forwarded(self._forward)
        return extra

    async def _whole(
        self, call: Call, meter: Meter, spoken: Spoken | None, question: tuple[str, bytes], connection: Connection
    ) -> tuple[str, bytes] | None:
        """An answer that comes in one piece: until it is all here, another endpoint may still be asked.

        What is to be asked of the same engine next, None when that was all and the client has its answer.
        """
        payload = mended(await connection.read_all(MAX_ANSWER_BYTES))
        if call.answered:
            raise UpstreamFailure("odd", "the answer is no stream, and one has begun")
        answer = answer_in(payload)
        estimated = False
        if answer is not None and (corrected := meter.correction(answer, len(payload))) is not None:
            estimated = corrected.estimated
            payload = bodies.edited(payload, {"usage": msgspec.json.encode(usage_object(corrected))})
            answer = answer_in(payload)
        if answer is not None and present(answer.error) and not present(answer.choices):
            raise self._engines.refusal(fault_in(payload, 502))
        if spoken is None:
            if answer is None:
                odd = payload.lstrip()[:1] == b"{"
                raise UpstreamFailure("odd" if odd else "protocol", "the answer is not a JSON object")
            used = answer.usage.used() if answer.usage is not None else None
        else:
            try:
                if (further := spoken.further(*question, payload)) is not None:
                    return further
                payload, used = spoken.whole(payload), spoken.used(payload)
            except (BadStream, RecursionError) as error:
                raise UpstreamFailure("odd", str(error)) from None
        if used is None:
            meter.tokens = max(1, len(payload) // 4)
            used = meter.estimate()
        used = meter.believed(used, len(payload))
        used.estimated = used.estimated or estimated
        meter.close("ok", 200, used)
        await call.answer(200, payload)
        return None

    async def _stream(
        self, call: Call, meter: Meter, asked: Asked, spoken: Spoken | None, connection: Connection
    ) -> None:
        # ``events`` finds and counts what the engine sends, ``say`` makes of it what the client reads.
        events = EventStream(asked.wants_usage or spoken is not None, answers_in(asked))
        say = _saying(spoken)
        try:
            out = await self._passed(call, meter, events, say, connection)
        except UpstreamFailure as failure:
            if call.delivered:
                fault = errors.stopping() if failure.kind == "stopping" else errors.upstream_broken()
                await self._cut_short(call, meter, events, say, b"", fault)
            raise
        await self._end(call, meter, events, say, out)

    async def _passed(
        self, call: Call, meter: Meter, events: EventStream, say: Events, connection: Connection
    ) -> bytes:
        """All but the last events, as they come; the rest of what there is. Raises UpstreamFailure."""

        def passed(data: bytes) -> bytes | None:
            """Pass events on; back comes what can not, or not yet, be passed on: the last ones, to one who waits."""
            out = say.feed(events.feed(data))
            if events.finished or events.failure is not None or call.waits:
                return out
            if out:
                meter.delivering(events.tokens, events.usage)
                call.push(out)
            return None

        try:
            out: bytes | None = say.feed(await self._first(events, connection))
            connection.deadline = None
            meter.first_token_ms = call.elapsed_ms
            while out is not None and not events.finished and events.failure is None:
                if out:
                    meter.delivering(events.tokens, events.usage)
                    if not call.answered:
                        await call.begin(200, SSE)
                    await call.write(out, True)
                if call.delivered:
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

    async def _end(self, call: Call, meter: Meter, events: EventStream, say: Events, out: bytes) -> None:
        """The last write: closed in the spool before it is made."""
        if events.failure is not None:
            fault = fault_in(events.failure, 502)
            await self._cut_short(call, meter, events, say, out, fault)
            raise Retryable("an error in the stream", lambda: fault, "nobody" if fault.status < 500 else "perhaps")
        if not events.complete:
            await self._cut_short(call, meter, events, say, out, errors.upstream_broken())
            raise UpstreamFailure("closed", "the stream ended without an end")
        meter.delivering(events.tokens, events.usage)
        said = events.used()
        used = meter.believed(said) if said is not None else meter.estimate()
        out += say.feed(events.close(used))
        meter.close("ok", 200, used)
        if not call.answered:
            await call.begin(200, SSE)
        await call.write(out, False)

    async def _cut_short(
        self, call: Call, meter: Meter, events: EventStream, say: Events, out: bytes, fault: Fault
    ) -> None:
        """The engine failed after content went out: say so in the stream."""
        meter.delivering(events.tokens, events.usage)
        await self._recount.prompt_of(meter)
        meter.close("upstream_error", 200)
        if not call.answered:
            await call.begin(200, SSE)
        await call.write(out + say.fail(fault), False)


class _Untranslated:
    """The events of an engine for a client that speaks what it speaks."""

    def feed(self, data: bytes) -> bytes:
        return data

    def fail(self, fault: Fault) -> bytes:
        return event_of(fault)


UNTRANSLATED = _Untranslated()


def _saying(spoken: Spoken | None) -> Events:
    return spoken.events() if spoken is not None and spoken.events is not None else UNTRANSLATED


STATUS_OF: dict[str | None, Status] = {
    "rate_limit_exceeded": "refused_limit",
    "budget_exceeded": "refused_budget",
    "content_policy": "refused_guard",
    "guard_unavailable": "refused_guard",
    "policy_missing": "refused_guard",
}


def _status_of(fault: Fault) -> Status:
    return STATUS_OF.get(fault.code) or ("client_error" if fault.status < 500 else "upstream_error")
