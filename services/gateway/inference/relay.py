"""The answer of an engine on its way to the client: in one piece, or as the events of a stream."""

from __future__ import annotations

import msgspec

from libs.engines import traits_of
from services.gateway.adapters.upstream import Connection, UpstreamFailure
from services.gateway.admission.request import InferenceRequest
from services.gateway.cluster.views import Routes, Target
from services.gateway.core import faults
from services.gateway.core.admission.estimate import answers_in
from services.gateway.core.context_window import ContextExceeded
from services.gateway.core.engine_errors import fault_in
from services.gateway.core.errors import event_of
from services.gateway.core.faults import Fault
from services.gateway.core.json.lossless import present, repaired
from services.gateway.core.protocols.operations import EMBEDDINGS, MESSAGES
from services.gateway.core.protocols.translations import Events, Translation
from services.gateway.core.request.body import edited
from services.gateway.core.sse.event_stream import EventStream, Overlong
from services.gateway.core.sse.events import BadStream
from services.gateway.core.usage.engine_usage import answer_in, usage_object
from services.gateway.http.exchange import SSE

from .answer_length import AnswerLength
from .dispatch import Blame, Dispatcher, RetryableFailure
from .metering import EngineRequest, Meter
from .prompt_count import PromptCount

MAX_ANSWER_BYTES = 64 * 1024 * 1024


class Relay:
    """Has endpoints answer requests, and passes their answers on."""

    def __init__(
        self, routes: Routes, dispatcher: Dispatcher, prompt_count: PromptCount, answer_length: AnswerLength
    ) -> None:
        self._routes = routes
        self._dispatcher = dispatcher
        self._prompt_count = prompt_count
        self._answer_length = answer_length

    async def answer(self, request: InferenceRequest, meter: Meter, target: Target, model: str) -> None:
        """Ask an endpoint of ``model``, and answer the client. The meter is closed before the last byte goes out.

        Raises Fault, RetryableFailure and Abandoned as ``Dispatcher.connection`` does; where ``exchange.delivered`` is
        set by then, the client was told in the stream.
        """
        sent = EngineRequest(target, model, request.body.data)
        try:
            await self._ask(request, meter, sent)
        except ContextExceeded as fault:
            if request.operation is EMBEDDINGS:
                await self._name_input(sent, request)
            if request.shortened or request.exchange.delivered:
                raise
            request.shortened = True
            if not await self._answer_length.fit_context(request, sent, fault):
                raise
            await self._ask(request, meter, sent._replace(body=request.body.data))

    async def _name_input(self, sent: EngineRequest, request: InferenceRequest) -> None:
        """Raises Fault naming the input that is too long, where it can be found out."""
        limit = (self._routes.find(sent.model) or request.served).route.context_length
        too_long = await self._prompt_count.too_long(sent, limit)
        if too_long is not None:
            index, tokens = too_long
            raise faults.input_too_long(f"input.{index}", tokens, limit) from None

    async def _ask(self, request: InferenceRequest, meter: Meter, sent: EngineRequest) -> None:
        operation, parsed, target = request.operation, request.parsed, sent.target
        body = sent.body
        stop_field = traits_of(target.endpoint.engine).stop_field
        if operation is MESSAGES and parsed.stop and stop_field is not None:
            body = edited(body, {stop_field: b"true"})
        further: tuple[str, bytes] | None = (operation.engine_path, body)
        while further is not None:
            async with self._dispatcher.connection(target, request, *further) as connection:
                if parsed.stream and connection.content_type.startswith(b"text/event-stream"):
                    meter.question = sent
                    await _Stream(self._dispatcher, self._prompt_count, request, meter, connection).relay()
                    further = None
                else:
                    further = await self._whole(request, meter, further, connection)

    async def _whole(
        self, request: InferenceRequest, meter: Meter, asked: tuple[str, bytes], connection: Connection
    ) -> tuple[str, bytes] | None:
        """An answer that comes in one piece: until it is all here, another endpoint may still be asked.

        Gives what is to be asked of the same engine next, path and body; None when the client has its answer.
        """
        exchange, translation = request.exchange, request.translation
        payload = repaired(await connection.read_all(MAX_ANSWER_BYTES))
        if exchange.answered:
            raise UpstreamFailure("odd", "the answer is not a stream, and one has begun")
        answer = answer_in(payload)
        estimated = False
        if answer is not None and (corrected := meter.correction(answer, len(payload))) is not None:
            estimated = corrected.estimated
            payload = edited(payload, {"usage": msgspec.json.encode(usage_object(corrected))})
            answer = answer_in(payload)
        if answer is not None and present(answer.error) and not present(answer.choices):
            raise self._dispatcher.refusal(fault_in(payload, 502))
        if translation is None:
            if answer is None:
                odd = payload.lstrip()[:1] == b"{"
                raise UpstreamFailure("odd" if odd else "protocol", "the answer is not a JSON object")
            used = answer.usage.used() if answer.usage is not None else None
        else:
            try:
                if (further := translation.further(*asked, payload)) is not None:
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


class _Stream:
    """One streamed answer. ``events`` finds and counts what the engine sends, ``client_events`` makes of it what the
    client reads."""

    __slots__ = ("_client_events", "_connection", "_dispatcher", "_events", "_exchange", "_meter", "_prompt_count")

    def __init__(
        self,
        dispatcher: Dispatcher,
        prompt_count: PromptCount,
        request: InferenceRequest,
        meter: Meter,
        connection: Connection,
    ) -> None:
        self._dispatcher = dispatcher
        self._prompt_count = prompt_count
        self._exchange = request.exchange
        self._meter = meter
        self._connection = connection
        wants_usage = request.parsed.wants_usage or request.translation is not None
        self._events = EventStream(wants_usage, answers_in(request.parsed))
        self._client_events = client_events(request.translation)

    async def relay(self) -> None:
        """Pass the stream on to its end. Raises UpstreamFailure, RetryableFailure; Fault before content went out."""
        try:
            last = await self._pass_on()
        except UpstreamFailure as failure:
            if self._exchange.delivered:
                stopping = failure.kind == "stopping"
                await self._cut_short(b"", faults.stopping() if stopping else faults.upstream_broken())
            raise
        await self._end(last)

    async def _pass_on(self) -> bytes:
        """All but the last events, as they come; the rest of what there is. Raises UpstreamFailure."""
        exchange, meter, connection, events, client = (
            *(self._exchange, self._meter, self._connection, self._events, self._client_events),
        )

        def push(data: bytes) -> bytes | None:
            """Pass events on; back comes what can not, or not yet, be passed on: the last ones, to one who waits."""
            out = client.feed(events.feed(data))
            if events.finished or events.failure is not None or exchange.waits:
                return out
            if out:
                meter.delivering(events.tokens, events.usage)
                exchange.push(out)
            return None

        try:
            out: bytes | None = client.feed(await self._first_content())
            connection.deadline = None
            meter.first_token_ms = exchange.elapsed_ms
            while out is not None and not events.finished and events.failure is None:
                if out:
                    meter.delivering(events.tokens, events.usage)
                    if not exchange.answered:
                        await exchange.begin(200, SSE)
                    await exchange.write(out, True)
                if exchange.delivered:
                    out = await connection.pour(push)
                else:
                    data = await connection.read()
                    out = client.feed(events.feed(data)) if data else None
        except (Overlong, BadStream, RecursionError) as error:
            raise UpstreamFailure("odd", str(error)) from None
        return out or b""

    async def _first_content(self) -> bytes:
        """The events up to the first one with content. An error before it is the endpoint's or the request's."""
        events = self._events
        while True:
            data = await self._connection.read()
            if not data:
                raise UpstreamFailure("closed", "the stream ended before its first token")
            out = events.feed(data)
            if events.failure is not None and not events.started:
                raise self._dispatcher.refusal(fault_in(events.failure, 502))
            if events.started:
                return out

    async def _end(self, out: bytes) -> None:
        """The last write: closed in the spool before it is made."""
        events, meter = self._events, self._meter
        if events.failure is not None:
            fault = fault_in(events.failure, 502)
            await self._cut_short(out, fault)
            blame: Blame = "nobody" if fault.status < 500 else "perhaps"
            raise RetryableFailure("an error in the stream", lambda: fault, blame)
        if not events.complete:
            await self._cut_short(out, faults.upstream_broken())
            raise UpstreamFailure("closed", "the stream ended without an end")
        meter.delivering(events.tokens, events.usage)
        claimed = events.used()
        used = meter.believed(claimed) if claimed is not None else meter.estimate()
        out += self._client_events.feed(events.close(used))
        meter.close("ok", 200, used)
        await self._write_last(out)

    async def _cut_short(self, out: bytes, fault: Fault) -> None:
        """The engine failed after content went out: say so in the stream."""
        self._meter.delivering(self._events.tokens, self._events.usage)
        await self._prompt_count.prompt_of(self._meter)
        self._meter.close("upstream_error", 200)
        await self._write_last(out + self._client_events.fail(fault))

    async def _write_last(self, out: bytes) -> None:
        if not self._exchange.answered:
            await self._exchange.begin(200, SSE)
        await self._exchange.write(out, False)


class _Untranslated:
    """The events of an engine for a client that speaks what it speaks."""

    def feed(self, data: bytes) -> bytes:
        return data

    def fail(self, fault: Fault) -> bytes:
        return event_of(fault)


_UNTRANSLATED = _Untranslated()


def client_events(translation: Translation | None) -> Events:
    """What makes the client's events of the engine's."""
    return translation.events() if translation is not None and translation.events is not None else _UNTRANSLATED
