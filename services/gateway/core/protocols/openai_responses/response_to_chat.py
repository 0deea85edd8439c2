"""An OpenAI Response as a chat completion, whole or as the chunks of a stream."""

from __future__ import annotations

import msgspec

from services.gateway.core.json.fields import Json
from services.gateway.core.json.lossless import repaired
from services.gateway.core.protocols.chat_chunks import ChatWriter, completion
from services.gateway.core.protocols.stop_reasons import CHAT_OF_INCOMPLETE
from services.gateway.core.protocols.token_counts import ResponseUsage
from services.gateway.core.sse.events import BadStream, Events
from services.gateway.core.usage.engine_usage import TokenUsage


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Error(msgspec.Struct):
    code: str | None = None
    message: str = ""


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    model: str = ""
    created_at: float = 0
    output: list[_Item] = []
    incomplete_details: _Incomplete | None = None
    error: _Error | None = None
    usage: ResponseUsage | None = None

    @property
    def used(self) -> TokenUsage:
        return self.usage.used() if self.usage is not None else TokenUsage()

    def finish(self, calls: bool) -> str:
        if self.incomplete_details is not None and self.incomplete_details.reason:
            return CHAT_OF_INCOMPLETE.get(self.incomplete_details.reason, "length")
        return "tool_calls" if calls else "stop"


class _Event(msgspec.Struct):
    type: str = ""
    delta: str = ""
    output_index: int = 0
    item: _Item | None = None
    response: _Response | None = None
    message: str = ""
    code: str | None = None


_response = msgspec.json.Decoder(_Response)
_event = msgspec.json.Decoder(_Event)


def chat(payload: bytes, answer_id: str) -> bytes:
    """The chat completion of a whole Response. Raises BadStream when it is none, or a failed one."""
    try:
        response = _response.decode(repaired(payload))
    except (msgspec.DecodeError, RecursionError) as problem:
        raise BadStream(f"the answer is not a Response: {problem}") from None
    if response.error is not None:
        raise BadStream(response.error.message)
    message: Json = {"role": "assistant", "content": None, "refusal": None}
    calls = []
    for item in response.output:
        parts = item.content or []
        if item.type == "message":
            answer_text = "".join(part.text for part in parts if part.type == "output_text")
            message["content"] = (
                (message["content"] or "") + answer_text if answer_text or not parts else message["content"]
            )
            if refused := "".join(part.refusal for part in parts):
                message["refusal"] = (message["refusal"] or "") + refused
        elif item.type == "reasoning":
            if thought := "".join(part.text for part in parts or item.summary or []):
                message["reasoning_content"] = message.get("reasoning_content", "") + thought
        elif item.type == "function_call":
            function = {"name": item.name, "arguments": item.arguments}
            calls.append({"id": item.call_id, "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    finish = response.finish(bool(calls))
    return completion(answer_id, int(response.created_at), response.model, message, finish, response.used)


class ChatOfResponseEvents:
    """The chunks of a chat completion out of the events of a Response, as bytes cut anywhere.

    It ends with a chunk of usage and ``[DONE]``; a failure becomes OpenAI's error event, and ends the stream too.
    """

    def __init__(self, answer_id: str) -> None:
        self._events = Events()
        self._writer = ChatWriter(answer_id, 0)
        self._places: dict[int, int] = {}
        self.finished = False

    def feed(self, data: bytes) -> bytes:
        """The chunks that may go out now. Raises BadStream, Overlong."""
        for event in self._events.feed(data):
            if self.finished or event.data == b"[DONE]":
                break
            try:
                self._add_event(_event.decode(repaired(event.data)))
            except (msgspec.DecodeError, RecursionError, LookupError) as problem:
                raise BadStream(f"an event cannot be read: {problem}") from None
        return self._writer.drain()

    def _add_event(self, event: _Event) -> None:
        writer = self._writer
        match event.type:
            case "response.created" if event.response is not None:
                writer.created = int(event.response.created_at)
                writer.model = event.response.model
                writer.role()
            case "response.output_text.delta":
                writer.delta(content=event.delta)
            case "response.refusal.delta":
                writer.delta(refusal=event.delta)
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                writer.delta(reasoning_content=event.delta)
            case "response.output_item.added" if event.item is not None and event.item.type == "function_call":
                place = self._places[event.output_index] = len(self._places)
                writer.call(place, event.item.call_id, event.item.name)
            case "response.function_call_arguments.delta":
                writer.arguments(self._places[event.output_index], event.delta)
            case "response.completed" | "response.incomplete" if event.response is not None:
                self.finished = True
                writer.end(event.response.finish(bool(self._places)), event.response.used)
            case "response.failed" if event.response is not None:
                self.finished = True
                error = event.response.error or _Error()
                writer.error(error.message, "server_error", error.code)
            case "error":
                self.finished = True
                writer.error(event.message, "server_error", event.code)
