"""An Anthropic Message as a chat completion, whole or as the chunks of a stream.

Thinking becomes ``reasoning_content``; the blocks with their signatures are in ``thinking_blocks``, from where
``chat_to_messages`` gives them back to the model byte for byte.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.gateway.core.json.fields import Json
from services.gateway.core.json.lossless import Number, encoded, repaired
from services.gateway.core.protocols.chat_chunks import ChatWriter, completion
from services.gateway.core.protocols.stop_reasons import CHAT_OF_MESSAGES
from services.gateway.core.protocols.token_counts import MessageUsage
from services.gateway.core.sse.events import BadStream, Events
from services.gateway.core.usage.engine_usage import TokenUsage

_THOUGHTS = ("thinking", "redacted_thinking")


class _Message(msgspec.Struct):
    id: str = ""
    model: str = ""
    content: list[Json] = []
    stop_reason: str | None = None
    usage: MessageUsage | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Error(msgspec.Struct):
    type: str = "api_error"
    message: str = ""


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: Json | None = None
    delta: _Delta | None = None
    usage: MessageUsage | None = None
    error: _Error | None = None


_message = msgspec.json.Decoder(_Message, float_hook=Number)
_event = msgspec.json.Decoder(_Event, float_hook=Number)


def chat(payload: bytes, answer_id: str, created: int) -> bytes:
    """The chat completion of a whole Message. Raises BadStream when it is none."""
    try:
        message = _message.decode(repaired(payload))
    except (msgspec.DecodeError, RecursionError) as problem:
        raise BadStream(f"the answer is not a Message: {problem}") from None
    texts = [_said(block, "text") for block in message.content if block.get("type") == "text"]
    thoughts = [block for block in message.content if block.get("type") in _THOUGHTS]
    calls = [_call(block) for block in message.content if block.get("type") == "tool_use"]
    out: Json = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    if thoughts:
        out["reasoning_content"] = "".join(_said(block, "thinking") for block in thoughts)
        out["thinking_blocks"] = thoughts
    if calls:
        out["tool_calls"] = calls
    used = message.usage.used() if message.usage is not None else TokenUsage()
    return completion(answer_id, created, message.model, out, _finish(message.stop_reason), used)


def _call(block: Json) -> Json:
    arguments = encoded(block.get("input", {})).decode()
    return {
        "id": _said(block, "id"),
        "type": "function",
        "function": {"name": _said(block, "name"), "arguments": arguments},
    }


def _said(block: Json, name: str) -> str:
    value = block.get(name)
    return value if isinstance(value, str) else ""


def _finish(stop_reason: str | None) -> str:
    return CHAT_OF_MESSAGES.get(stop_reason or "end_turn", "stop")


class ChatOfMessageEvents:
    """The chunks of a chat completion out of the events of a Message, as bytes cut anywhere.

    It ends with a chunk of usage and ``[DONE]``; an error event becomes OpenAI's, and ends the stream too.
    """

    def __init__(self, answer_id: str, created: int) -> None:
        self._events = Events()
        self._writer = ChatWriter(answer_id, created)
        self._calls = self._thoughts = 0
        self._blocks: dict[int, Json] = {}
        self._parts: dict[int, list[str]] = {}
        self._stop_reason: str | None = None
        self._usage: MessageUsage | None = None
        self.finished = False

    def feed(self, data: bytes) -> bytes:
        """The chunks that may go out now. Raises BadStream, Overlong."""
        for event in self._events.feed(data):
            if self.finished:
                break
            try:
                self._add_event(_event.decode(repaired(event.data)))
            except (msgspec.DecodeError, RecursionError, LookupError) as problem:
                raise BadStream(f"an event cannot be read: {problem}") from None
        return self._writer.drain()

    def _add_event(self, event: _Event) -> None:
        if event.usage is not None:
            self._usage = event.usage.after(self._usage)
        match event.type:
            case "message_start" if event.message is not None:
                self._writer.model = event.message.model
                self._usage = event.message.usage
                self._writer.role()
            case "content_block_start" if event.content_block is not None:
                self._begin(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                self._more(event.index, event.delta)
            case "content_block_stop":
                self._close(event.index)
            case "message_delta" if event.delta is not None:
                self._stop_reason = event.delta.stop_reason or self._stop_reason
            case "message_stop":
                self.finished = True
                used = self._usage.used() if self._usage is not None else TokenUsage()
                self._writer.end(_finish(self._stop_reason), used)
            case "error":
                self.finished = True
                error = event.error or _Error()
                self._writer.error(error.message, error.type)

    def _begin(self, index: int, block: Json) -> None:
        self._blocks[index] = block
        self._parts[index] = []
        if block.get("type") == "tool_use":
            block["place"] = self._calls
            self._calls += 1
            self._writer.call(block["place"], _said(block, "id"), _said(block, "name"))
        elif block.get("type") == "text" and (text := _said(block, "text")):
            self._writer.delta(content=text)

    def _more(self, index: int, delta: _Delta) -> None:
        parts = self._parts.setdefault(index, [])
        match delta.type:
            case "text_delta":
                self._writer.delta(content=delta.text)
            case "thinking_delta":
                parts.append(delta.thinking)
                self._writer.delta(reasoning_content=delta.thinking)
            case "signature_delta":
                self._blocks.setdefault(index, {})["signature"] = delta.signature
            case "input_json_delta" if delta.partial_json and "place" in self._blocks.get(index, {}):
                # Tools that run at Anthropic are none of the client's, and neither is what they are given.
                parts.append(delta.partial_json)
                self._writer.arguments(self._blocks[index]["place"], delta.partial_json)

    def _close(self, index: int) -> None:
        block, parts = self._blocks.pop(index, {}), self._parts.pop(index, [])
        kind = block.get("type")
        if kind == "tool_use" and not parts:
            self._writer.arguments(block["place"], encoded(block.get("input") or {}).decode())
        elif kind == "thinking":
            signed: Any = {**block, "thinking": _said(block, "thinking") + "".join(parts)}
            self._thought(signed)
        elif kind == "redacted_thinking":
            self._thought(block)

    def _thought(self, block: Json) -> None:
        # OpenAI's SDK joins the lists of deltas by index.
        self._writer.delta(thinking_blocks=[{"index": self._thoughts, **block}])
        self._thoughts += 1
