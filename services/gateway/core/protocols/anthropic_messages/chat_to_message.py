"""A chat completion as an Anthropic Message, whole or as the events of a stream.

The order and framing of events is that of Anthropic's reference: ``message_start``, then blocks one after the
other (``content_block_start``, its deltas, ``content_block_stop``), ``message_delta`` with the stop reason and
the final usage, ``message_stop``.
"""

from __future__ import annotations

import msgspec

from services.gateway.core.faults import Fault
from services.gateway.core.json.fields import Json
from services.gateway.core.json.lossless import encoded
from services.gateway.core.protocols.blocks import (
    Block,
    ChatStream,
    Chunk,
    Sort,
    answer_of,
)
from services.gateway.core.protocols.stop_reasons import Stop
from services.gateway.core.protocols.thinking import UNSIGNED
from services.gateway.core.protocols.token_counts import message_usage
from services.gateway.core.protocols.tool_arguments import value_of, value_of_cut
from services.gateway.core.sse.events import named
from services.gateway.core.usage.engine_usage import TokenUsage

from .errors import error_object

_HIDDEN: frozenset[Sort] = frozenset({"thinking"})


class MessageShape(msgspec.Struct, frozen=True):
    """What an answer takes from its request."""

    token: str
    """Unique for the answer; the message's id is ``msg_`` and this."""
    model: str
    """Where the engine names none."""
    thinks: bool
    """Whether the client asked to see thinking. It is left out otherwise, as Anthropic does."""

    prompt_tokens: int = 0
    """An estimate, for the beginning of a stream: an engine counts at the end."""

    @property
    def without(self) -> frozenset[Sort]:
        """Sorts of blocks that are left out of the answer."""
        return frozenset() if self.thinks else _HIDDEN


def shape_of(body: Json, token: str, prompt_tokens: int = 0) -> MessageShape:
    """Of a Messages request, whose prompt is about so long."""
    thinking = body.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    shown = isinstance(thinking, dict) and thinking.get("display") != "omitted"
    return MessageShape(
        token, str(body.get("model")), kind in ("enabled", "adaptive", "between_tools") and shown, prompt_tokens
    )


def message(payload: bytes, shape: MessageShape) -> bytes:
    """The Message of a whole chat completion. Raises BadStream when it is none."""
    answer = answer_of(payload, shape.without)
    out = _message(shape, answer.chunk.model, answer.used)
    out["content"] = [_whole(block, shape) for block in answer.blocks]
    if answer.stop.finish == "length" and answer.blocks and answer.blocks[-1].sort == "tool":
        out["content"][-1]["input"] = value_of_cut(answer.blocks[-1].text)
    out |= _end(answer.stop)
    return encoded(out)


class MessageEvents(ChatStream):
    """The events of a Message out of the chunks of a chat completion."""

    def __init__(self, shape: MessageShape) -> None:
        super().__init__(shape.without)
        self._shape = shape

    def fail(self, fault: Fault) -> bytes:
        """The event that ends a stream which already has content."""
        self.finished = True
        return named("error", error_object(fault))

    def begun(self, chunk: Chunk) -> None:
        start = _message(
            self._shape, chunk.model, self.used if self.used.prompt else TokenUsage(prompt=self._shape.prompt_tokens)
        )
        self._event("message_start", {"message": start})

    def opened(self, block: Block) -> None:
        self._event("content_block_start", {"index": block.index, "content_block": _empty(block, self._shape)})

    def added(self, block: Block, text: str) -> None:
        kind, field = _DELTAS[block.sort]
        self._event("content_block_delta", {"index": block.index, "delta": {"type": kind, field: text}})

    def closed(self, block: Block, last: bool) -> None:
        if block.sort == "thinking":
            signed = {"type": "signature_delta", "signature": UNSIGNED}
            self._event("content_block_delta", {"index": block.index, "delta": signed})
        self._event("content_block_stop", {"index": block.index})

    def ended(self) -> None:
        self._event("message_delta", {"delta": _end(self.stop), "usage": message_usage(self.used)})
        self._event("message_stop", {})

    def _event(self, name: str, fields: Json) -> None:
        self.out.append(named(name, {"type": name, **fields}))


_DELTAS: dict[Sort, tuple[str, str]] = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "refusal": ("text_delta", "text"),
    "tool": ("input_json_delta", "partial_json"),
}


def _message(shape: MessageShape, model: str | None, used: TokenUsage) -> Json:
    return {
        "id": f"msg_{shape.token}",
        "type": "message",
        "role": "assistant",
        "model": model or shape.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": message_usage(used),
    }


def _end(stop: Stop) -> Json:
    reason, sequence = stop.message
    return {"stop_reason": reason, "stop_sequence": sequence}


def _empty(block: Block, shape: MessageShape) -> Json:
    """A block before its first delta."""
    if block.sort == "tool":
        call_id = block.call_id or f"toolu_{shape.token}_{block.index}"
        return {"type": "tool_use", "id": call_id, "name": block.name, "input": {}}
    if block.sort == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _whole(block: Block, shape: MessageShape) -> Json:
    out = _empty(block, shape)
    if block.sort == "tool":
        out["input"] = value_of(block.text)
    elif block.sort == "thinking":
        out |= {"thinking": block.text, "signature": UNSIGNED}
    else:
        out["text"] = block.text
    return out
