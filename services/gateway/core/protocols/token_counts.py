"""Token counts in the words of each protocol.

OpenAI counts cached tokens inside the prompt; Anthropic counts the prompt's tokens without them.
"""

from __future__ import annotations

import msgspec

from services.gateway.core.json.fields import Json
from services.gateway.core.usage.engine_usage import TokenUsage


def message_usage(used: TokenUsage) -> Json:
    """``usage`` of a Message."""
    usage: Json = {
        "input_tokens": used.prompt - used.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.completion,
    }
    if used.reasoning:
        usage["output_tokens_details"] = {"thinking_tokens": used.reasoning}
    return usage


def response_usage(used: TokenUsage) -> Json:
    """``usage`` of a Response."""
    return {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.completion,
        "output_tokens_details": {"reasoning_tokens": used.reasoning},
        "total_tokens": used.prompt + used.completion,
    }


def chat_usage(used: TokenUsage) -> Json:
    """``usage`` of a chat completion."""
    usage: Json = {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.prompt + used.completion,
        "prompt_tokens_details": {"cached_tokens": used.cached},
    }
    if used.reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": used.reasoning}
    return usage


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None
    reasoning_tokens: int | None = None


class MessageUsage(msgspec.Struct):
    """``usage`` of Anthropic's events; what a later event does not name stays."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None

    def after(self, earlier: MessageUsage | None) -> MessageUsage:
        """This, and what ``earlier`` said that this does not name."""
        if earlier is None:
            return self
        for name in self.__struct_fields__:
            if getattr(self, name) is None:
                setattr(self, name, getattr(earlier, name))
        return self

    def used(self) -> TokenUsage:
        """The same, as the gateway counts."""
        cached = self.cache_read_input_tokens or 0
        details = self.output_tokens_details
        return TokenUsage(
            prompt=(self.input_tokens or 0) + cached + (self.cache_creation_input_tokens or 0),
            cached=cached,
            completion=self.output_tokens or 0,
            reasoning=(details.thinking_tokens or 0) if details else 0,
        )


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class ResponseUsage(msgspec.Struct):
    """``usage`` of a Response."""

    input_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None

    def used(self) -> TokenUsage:
        """The same, as the gateway counts."""
        inside, outside = self.input_tokens_details, self.output_tokens_details
        return TokenUsage(
            prompt=self.input_tokens or 0,
            cached=(inside.cached_tokens or 0) if inside else 0,
            completion=self.output_tokens or 0,
            reasoning=(outside.reasoning_tokens or 0) if outside else 0,
        )
