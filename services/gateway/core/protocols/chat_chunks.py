"""Writing a chat completion, whole or as the chunks of a stream, whatever it is made from."""

from __future__ import annotations

from typing import Any

from services.gateway.core.json.fields import Json
from services.gateway.core.json.lossless import encoded
from services.gateway.core.sse.events import unnamed
from services.gateway.core.usage.engine_usage import TokenUsage

from .token_counts import chat_usage


class ChatWriter:
    """Chunks of one chat completion, gathered in ``out``. Every chunk has the same id, time and model."""

    def __init__(self, answer_id: str, created: int) -> None:
        self._id = answer_id
        self.created = created
        self.model = ""
        self.out: list[bytes] = []

    def drain(self) -> bytes:
        """What was written since the last time."""
        out = b"".join(self.out)
        self.out.clear()
        return out

    def role(self) -> None:
        """The first chunk, which says only who speaks."""
        self.delta(role="assistant", content="")

    def delta(self, **fields: Any) -> None:
        """A chunk with these fields in its delta."""
        self._chunk([{"index": 0, "delta": fields, "logprobs": None, "finish_reason": None}])

    def call(self, index: int, call_id: str, name: str) -> None:
        """A tool call begins: the only chunk with its id and name."""
        function = {"name": name, "arguments": ""}
        self.delta(tool_calls=[{"index": index, "id": call_id, "type": "function", "function": function}])

    def arguments(self, index: int, text: str) -> None:
        """More of a tool call's arguments."""
        self.delta(tool_calls=[{"index": index, "function": {"arguments": text}}])

    def end(self, finish_reason: str, used: TokenUsage) -> None:
        """The last chunks: finish reason, usage, ``[DONE]``."""
        self._chunk([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish_reason}])
        self._chunk([], usage=chat_usage(used))
        self.out.append(b"data: [DONE]\n\n")

    def error(self, message: str, kind: str, code: Any = None) -> None:
        """The event with which a stream of OpenAI's ends when it fails."""
        self.out.append(unnamed({"error": {"message": message, "type": kind, "param": None, "code": code}}))

    def _chunk(self, choices: list[Json], **fields: Any) -> None:
        head = {"id": self._id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        self.out.append(unnamed({**head, "choices": choices, **fields}))


def completion(answer_id: str, created: int, model: str, message: Json, finish_reason: str, used: TokenUsage) -> bytes:
    """A whole chat completion."""
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return encoded(
        {
            "id": answer_id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": chat_usage(used),
        }
    )
