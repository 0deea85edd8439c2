"""How a request of each protocol is put to an engine, and the engine's answer to the client.

A translator takes the client's body and gives what the engine is asked, with the ways back for its answer. Requests
that an engine understands as they are have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from services.gateway.core.faults import Fault
from services.gateway.core.request.body import Body
from services.gateway.core.request.messages import media_bytes
from services.gateway.core.usage.engine_usage import TokenUsage, answer_in, estimate_prompt

from . import embeddings, rerank, tokenize
from .anthropic_messages import chat_to_message, messages_to_chat
from .openai_responses import chat_to_response, responses_to_chat


class Events(Protocol):
    """Translates a streamed answer."""

    def feed(self, data: bytes) -> bytes:
        """The client's events out of the engine's. Raises BadStream."""

    def fail(self, fault: Fault) -> bytes:
        """The event that ends a stream which already has content."""


class Translation(msgspec.Struct, frozen=True):
    """One request in the engine's protocol."""

    body: Body
    whole: Callable[[bytes], bytes]
    """The client's answer out of the engine's, when it comes in one piece. Raises BadStream."""
    events: Callable[[], Events] | None = None
    """None: there is no stream of it."""
    used: Callable[[bytes], TokenUsage | None] = lambda payload: _used(payload)
    """Tokens the engine says it used; None where it does not say."""
    further: Callable[[str, bytes, bytes], tuple[str, bytes] | None] = lambda path, body, payload: None
    """What the engine is to be asked next, path and body, by what it was asked and answered; None: nothing."""
    warnings: tuple[str, ...] = ()
    """What of the request could not be said to the engine."""


Clock = Callable[[], float]
"""Seconds since 1970."""
Translator = Callable[[Body, str, Clock], Translation]
"""The body, a token that is unique for the request, and a clock. Raises Fault naming what cannot be translated."""


def _used(payload: bytes) -> TokenUsage | None:
    answer = answer_in(payload)
    return answer.usage.used() if answer is not None and answer.usage is not None else None


def _nothing(payload: bytes) -> TokenUsage | None:
    return TokenUsage()


def translate_messages(body: Body, token: str, clock: Clock) -> Translation:
    """Anthropic Messages on an engine that speaks Chat."""
    fields = body.tree
    chat = messages_to_chat.request(fields)
    asked = chat.encoded()
    shape = chat_to_message.shape_of(fields, token, estimate_prompt(len(asked) - media_bytes(chat.body)))
    return Translation(
        body=Body(asked),
        whole=lambda payload: chat_to_message.message(payload, shape),
        events=lambda: chat_to_message.MessageEvents(shape),
        warnings=tuple(chat.warnings),
    )


def translate_responses(body: Body, token: str, clock: Clock) -> Translation:
    """OpenAI Responses on an engine that speaks Chat."""
    fields = body.tree
    chat = responses_to_chat.request(fields)
    shape = chat_to_response.shape_of(fields, token, clock)
    return Translation(
        body=Body(chat.encoded()),
        whole=lambda payload: chat_to_response.response(payload, shape),
        events=lambda: chat_to_response.ResponseEvents(shape),
        warnings=tuple(chat.warnings),
    )


def translate_embeddings(body: Body, token: str, clock: Clock) -> Translation:
    """Embeddings: numbers from the engine, what was asked for to the client."""
    wanted, asked = embeddings.request(body)
    return Translation(body=asked, whole=lambda payload: embeddings.answer(payload, wanted))


def translate_rerank(body: Body, token: str, clock: Clock) -> Translation:
    """Reranking: one shape whatever the engine's."""
    return Translation(
        body=rerank.request(body),
        whole=lambda payload: rerank.answer(payload, body.tree, f"rerank-{token}"),
        used=rerank.used_in,
    )


def pass_on(body: Body, token: str, clock: Clock) -> Translation:
    """What an engine answers without generating or reading anything: passed on as it is, at no tokens."""
    return Translation(body=body, whole=lambda payload: payload, used=_nothing)


def translate_count_tokens(body: Body, token: str, clock: Clock) -> Translation:
    """A Messages request whose tokens are counted: what the engine is asked, and its count in Anthropic's shape."""
    fields = body.tree
    chat = messages_to_chat.request({"max_tokens": 1} | fields)
    return Translation(
        body=Body(tokenize.request(chat.body)),
        whole=lambda payload: tokenize.answer(tokenize.count(payload)),
        used=_nothing,
        further=tokenize.further,
        warnings=tuple(chat.warnings),
    )
