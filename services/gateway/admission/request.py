"""A request to an engine: read from its body, and carried from the first limit to the last byte of its answer."""

from __future__ import annotations

import time

import msgspec

from libs.events.views import KeyView
from services.gateway.cluster.views import Routes, ServedModel
from services.gateway.core import faults
from services.gateway.core.protocols.operations import Operation
from services.gateway.core.protocols.translations import Translation
from services.gateway.core.request.body import Body, ParsedRequest, asking_usage, parse, received
from services.gateway.http.exchange import Exchange


class InferenceRequest:
    """What is known of a request. Only ``body`` changes, and with it ``parsed.max_tokens``."""

    __slots__ = (
        *("body", "body_bytes", "exchange", "key", "media", "operation", "parsed", "served", "shortened"),
        "translation",
    )

    def __init__(
        self,
        exchange: Exchange,
        operation: Operation,
        key: KeyView,
        body: Body,
        media: tuple[str, str] | None,
        translation: Translation | None,
        parsed: ParsedRequest,
        served: ServedModel,
    ) -> None:
        self.exchange = exchange
        self.operation = operation
        self.key = key
        self.body = body
        """As the engine is to get it."""
        self.media = media
        """Where in the client's body the first part stands that is no text, and what it is."""
        self.translation = translation
        """None: the engine understands the client's protocol."""
        self.parsed = parsed
        """What was read of ``body``."""
        self.served = served
        """The model that was asked for."""
        self.body_bytes = len(body)
        """Of the body that was read, before anything in it was changed."""
        self.shortened = False
        """It was asked once more, for as long an answer as its prompt leaves room for."""

    def edit(self, changes: dict[str, bytes | None]) -> None:
        """Replace top-level fields of the engine's body; values are JSON, None leaves a field out."""
        self.body = self.body.edited(changes)

    def engine_fields(self) -> dict[str, bytes | None]:
        """Fields the engine gets otherwise than the client wrote them: the model's own name, and the wish for usage."""
        changes: dict[str, bytes | None] = {}
        if self.parsed.model != self.served.route.model:
            changes["model"] = msgspec.json.encode(self.served.route.model)
        if self.parsed.stream and not self.parsed.wants_usage:
            changes["stream_options"] = asking_usage(self.parsed, self.body)
        return changes

    def shorten_answer(self, max_tokens: int) -> None:
        """Ask for an answer of at most so many tokens."""
        self.parsed.max_tokens = max_tokens
        self.edit({"max_tokens": msgspec.json.encode(max_tokens)})

    def check(self, served: ServedModel) -> None:
        """That a model can do what is asked. Raises Fault (400) naming what it cannot."""
        operation, route = self.operation, served.route
        if operation.capability is not None and route.capabilities and operation.capability not in route.capabilities:
            raise faults.capability_missing(route.model, operation.capability, route.capabilities)
        for field, tokens in self.parsed.limits():
            if tokens > served.max_tokens:
                name = operation.limit_field or field if field == "max_tokens" else field
                raise faults.too_many_tokens(name, tokens, served.max_tokens, route.model, operation.protocol)
        if self.media is not None and route.capabilities and "vision" not in route.capabilities:
            at, what = self.media
            raise faults.media_not_taken(route.model, what, at)

    def may_fall_back_to(self, served: ServedModel) -> bool:
        """Whether another model may and can answer in the place of the one asked for."""
        try:
            self.check(served)
        except faults.Fault:
            return False
        return served.open_to(self.key)

    def answered_by(self, model: str) -> None:
        """Another model is to answer; its client is told."""
        self.edit({"model": msgspec.json.encode(model)})
        self.exchange.served_by(model)


async def read_request(
    exchange: Exchange, operation: Operation, key: KeyView, routes: Routes, max_body_bytes: int
) -> InferenceRequest:
    """The request in an exchange, in the engine's protocol. Raises Fault (400, 404, 413, 415, 503), Abandoned."""
    body = received(await exchange.body(max_body_bytes))
    media = body.media
    translation = None
    if operation.translate is not None:
        translation = operation.translate(body, exchange.request_id.removeprefix("req-"), time.time)
        exchange.warn(translation.warnings)
        body = translation.body
    parsed = parse(body, operation.content_field, translation is not None)
    served = routes.get(parsed.model, key)
    if served.route.stopped is not None:
        raise faults.stopped(served.route.model, served.route.stopped, served.route.stopped_reason)
    return InferenceRequest(exchange, operation, key, body, media, translation, parsed, served)
