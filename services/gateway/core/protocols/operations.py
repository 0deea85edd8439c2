"""The kinds of request that go to an engine."""

from __future__ import annotations

from typing import NamedTuple

from libs.events.usage import Protocol

from . import translations
from .translations import Translate


class Operation(NamedTuple):
    path: str
    content: str | None
    """The field that must be there and holds the text; None: engines have several."""
    capability: str | None
    """What a model must be able to do; None: nothing in particular."""
    protocol: Protocol
    operation: str
    """OpenTelemetry's name for it."""
    engine_path: str
    translate: Translate | None = None
    """None: engines understand it as it is."""
    limit: str | None = None
    """What the client calls ``max_tokens``, where it is called otherwise."""

    @property
    def text(self) -> str:
        """The client's field with the text."""
        return "input" if self.limit == "max_output_tokens" else self.content or "prompt"


_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"

CHAT = Operation(_CHAT, "messages", "chat", "openai.chat", "chat", _CHAT)
TEXT = Operation(_COMPLETIONS, "prompt", "completions", "openai.completions", "text_completion", _COMPLETIONS)
MESSAGES = Operation("/v1/messages", "messages", "chat", "anthropic.messages", "chat", _CHAT, translations.messages)
RESPONSES = Operation(
    "/v1/responses", "messages", "chat", "openai.responses", "chat", _CHAT, translations.responses, "max_output_tokens"
)
EMBEDDINGS = Operation(
    *("/v1/embeddings", "input", "embeddings", "openai.embeddings", "embeddings", "/v1/embeddings"),
    translations.embedded,
)
RERANK = Operation("/v1/rerank", "query", "rerank", "rerank", "rerank", "/v1/rerank", translations.ranked)
TOKENIZE = Operation("/tokenize", None, None, "tokenize", "tokenize", "/tokenize", translations.uncounted)
DETOKENIZE = Operation("/detokenize", None, None, "tokenize", "detokenize", "/detokenize", translations.uncounted)
COUNT_TOKENS = Operation(
    "/v1/messages/count_tokens", "messages", "chat", "tokenize", "count_tokens", "/tokenize", translations.counted
)

OPERATIONS = (CHAT, TEXT, MESSAGES, RESPONSES, EMBEDDINGS, RERANK, TOKENIZE, DETOKENIZE, COUNT_TOKENS)
"""All of them."""
