"""What can be asked of an engine: one row an operation."""

from __future__ import annotations

from typing import NamedTuple

from libs.events.usage import Protocol

from . import translations as t


class Operation(NamedTuple):
    """A path of the gateway whose requests go to an engine."""

    path: str
    content_field: str | None
    """The field that must be there and holds the text; None: engines have several."""
    capability: str | None
    """What a model must be able to do; None: nothing in particular."""
    protocol: Protocol
    telemetry_name: str
    """OpenTelemetry's name for it."""
    engine_path: str
    translate: t.Translator | None = None
    """Makes of the client's body what the engine is asked, and has the ways back for the answer; it checks the types of
    the fields it reads. None: engines understand the body as it is, and only what ``parse`` reads is checked."""
    limit_field: str | None = None
    """What the client calls ``max_tokens``, where it is called otherwise."""

    @property
    def text_field(self) -> str:
        """The client's field with the text."""
        return "input" if self.limit_field == "max_output_tokens" else self.content_field or "prompt"


_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"

CHAT = Operation(_CHAT, "messages", "chat", "openai.chat", "chat", _CHAT)
TEXT = Operation(_COMPLETIONS, "prompt", "completions", "openai.completions", "text_completion", _COMPLETIONS)
MESSAGES = Operation("/v1/messages", "messages", "chat", "anthropic.messages", "chat", _CHAT, t.translate_messages)
RESPONSES = Operation(
    "/v1/responses",
    "messages",
    "chat",
    "openai.responses",
    "chat",
    _CHAT,
    t.translate_responses,
    "max_output_tokens",
)
EMBEDDINGS = Operation(
    *("/v1/embeddings", "input", "embeddings", "openai.embeddings", "embeddings", "/v1/embeddings"),
    t.translate_embeddings,
)
RERANK = Operation("/v1/rerank", "query", "rerank", "rerank", "rerank", "/v1/rerank", t.translate_rerank)
TOKENIZE = Operation("/tokenize", None, None, "tokenize", "tokenize", "/tokenize", t.pass_on)
DETOKENIZE = Operation("/detokenize", None, None, "tokenize", "detokenize", "/detokenize", t.pass_on)
COUNT_TOKENS = Operation(
    "/v1/messages/count_tokens",
    "messages",
    "chat",
    "tokenize",
    "count_tokens",
    "/tokenize",
    t.translate_count_tokens,
)

OPERATIONS = (CHAT, TEXT, MESSAGES, RESPONSES, EMBEDDINGS, RERANK, TOKENIZE, DETOKENIZE, COUNT_TOKENS)
"""All of them."""
