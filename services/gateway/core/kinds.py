"""The kinds of request that go to an engine."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Kind(NamedTuple):
    path: str
    """Ours and the engine's."""
    content: str
    """The field that holds the text."""
    capability: str
    """What a model must be able to do."""
    protocol: Literal["openai.chat", "openai.completions"]
    operation: str
    """OpenTelemetry's name for it."""


CHAT = Kind("/v1/chat/completions", "messages", "chat", "openai.chat", "chat")
TEXT = Kind("/v1/completions", "prompt", "completions", "openai.completions", "text_completion")
