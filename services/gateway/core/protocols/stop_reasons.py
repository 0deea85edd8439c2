"""Why an answer ended, in the words of each protocol: one table for every translation."""

from __future__ import annotations

from typing import Any

# The official lists: Chat finish_reason and Responses incomplete_details of OpenAI's API reference, stop_reason of
# Anthropic's Messages reference; abort is what vLLM and SGLang say of a request that was given up.
MESSAGES_OF_CHAT = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
    "abort": "end_turn",
}
CHAT_OF_MESSAGES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "stop",
    "refusal": "content_filter",
}
INCOMPLETE_OF_CHAT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons after which a Response is ``incomplete``; after all others it is ``completed``."""
CHAT_OF_INCOMPLETE = {reason: finish for finish, reason in INCOMPLETE_OF_CHAT.items()}


class Stop:
    """The end of a chat answer, collected from wherever it is said."""

    __slots__ = ("finish", "refused", "sequence", "tools")

    def __init__(self) -> None:
        self.finish: str | None = None
        self.sequence: str | None = None
        """The stop sequence that was met, where the engine says which (vLLM, TensorRT-LLM, SGLang)."""
        self.tools = False
        self.refused = False

    def note(self, finish: str | None, *matched: Any) -> None:
        """``matched``: ``stop_reason`` or ``matched_stop``, a text when a stop sequence was met, else a token id."""
        if finish:
            self.finish = finish
        for sequence in matched:
            if isinstance(sequence, str) and finish == "stop":
                self.sequence = sequence

    @property
    def chat(self) -> str:
        """A turn with tool calls stops for them, also where an engine says ``stop``."""
        if self.tools and self.finish in (None, "stop", "function_call"):
            return "tool_calls"
        return self.finish or "stop"

    @property
    def message(self) -> tuple[str, str | None]:
        """``stop_reason`` and ``stop_sequence`` of a Message."""
        if self.refused:
            return "refusal", None
        chat = self.chat
        if chat == "stop" and self.sequence is not None:
            return "stop_sequence", self.sequence
        return MESSAGES_OF_CHAT.get(chat, "end_turn"), None

    @property
    def incomplete(self) -> str | None:
        """``incomplete_details.reason`` of a Response, None when it is complete."""
        return INCOMPLETE_OF_CHAT.get(self.chat)
