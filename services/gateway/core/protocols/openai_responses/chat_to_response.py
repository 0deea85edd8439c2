"""A chat completion as an OpenAI Response, whole or as the events of a stream.

Events carry rising sequence numbers; each item is announced, filled and done before the next begins, and the last
event carries the whole Response. Order and shapes: OpenAI's reference of streaming events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from services.gateway.core.faults import Fault
from services.gateway.core.json.fields import Json
from services.gateway.core.json.lossless import encoded
from services.gateway.core.protocols.blocks import (
    Block,
    ChatStream,
    Chunk,
    answer_of,
)
from services.gateway.core.protocols.stop_reasons import Stop
from services.gateway.core.protocols.token_counts import response_usage
from services.gateway.core.sse.events import named
from services.gateway.core.usage.engine_usage import TokenUsage

from .tool_items import PREFIXES, item_of
from .tools import Tool, Tools, tools_of

_ECHOED: dict[str, Any] = {
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of the request that come back in the Response, and what they are when they were not sent."""


class ResponseShape(msgspec.Struct, frozen=True):
    """What an answer takes from its request."""

    token: str
    """Unique for the answer; all ids of it are made with this."""
    echo: Json
    tools: Tools
    clock: Callable[[], float]
    """Seconds since 1970."""
    summarised: bool
    """Whether the client asked for a summary of the reasoning: then it comes as one, else as the item's content."""


def shape_of(body: Json, token: str, clock: Callable[[], float]) -> ResponseShape:
    """Of a Responses request that was translated."""
    echo = {name: usual if body.get(name) is None else body[name] for name, usual in _ECHOED.items()}
    reasoning = body.get("reasoning") if isinstance(body.get("reasoning"), dict) else {}
    assert isinstance(reasoning, dict)
    echo["reasoning"] = {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")}
    echo["model"] = body.get("model")
    echo["service_tier"] = "default"
    echo["tools"] = [_echoed(tool) for tool in body.get("tools") or ()]
    summarised = bool(reasoning.get("summary") or reasoning.get("generate_summary"))
    return ResponseShape(token, echo, tools_of(body, []), clock, summarised)


def _echoed(tool: Any) -> Any:
    """A tool as a Response has it: with all fields. A function is strict only where that was asked for."""
    if isinstance(tool, dict) and tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": False, **tool}
    if isinstance(tool, dict) and tool.get("type") == "namespace" and isinstance(tool.get("tools"), list):
        return tool | {"tools": [_echoed(inner) for inner in tool["tools"]]}
    return tool


def response(payload: bytes, shape: ResponseShape) -> bytes:
    """The Response of a whole chat completion. Raises BadStream when it is none."""
    answer = answer_of(payload)
    items = _Items(shape)
    status = _status(answer.stop)
    output = [items.done(block, _last(status, block, answer.blocks)) for block in answer.blocks]
    return encoded(_response(shape, answer.chunk, status, output, answer.stop, answer.used))


class ResponseEvents(ChatStream):
    """The events of a Response out of the chunks of a chat completion."""

    def __init__(self, shape: ResponseShape) -> None:
        super().__init__()
        self._shape = shape
        self._items = _Items(shape)
        self._first = Chunk()
        self._output: list[Json] = []
        self._sequence = 0

    def fail(self, fault: Fault) -> bytes:
        """The event that ends a stream; its clients want to hear of a Response before they hear that it failed."""
        self.begin(Chunk())
        self.finished = True
        failed = _response(self._shape, self._first, "failed", self._output, self.stop, None)
        failed["error"] = {"code": "server_error", "message": fault.message}
        self._event("response.failed", {"response": failed})
        out = b"".join(self.out)
        self.out.clear()
        return out

    def begun(self, chunk: Chunk) -> None:
        self._first = chunk
        started = _response(self._shape, chunk, "in_progress", [], self.stop, None)
        self._event("response.created", {"response": started})
        self._event("response.in_progress", {"response": started})

    def opened(self, block: Block) -> None:
        if self._items.waits(block):
            return
        self._event("response.output_item.added", {"output_index": block.index, "item": self._items.empty(block)})
        if names := self._items.events(block):
            self._part(names.opened, block, {names.index: 0, "part": self._items.part(block, "")})

    def added(self, block: Block, text: str) -> None:
        if self._items.waits(block):
            return
        names = self._items.events(block)
        fields: Json = {} if names is None else {names.index: 0}
        name = "response.function_call_arguments" if names is None else names.text
        fields["delta"] = text
        if block.sort == "text":
            fields["logprobs"] = []
        self._part(f"{name}.delta", block, fields)

    def closed(self, block: Block, last: bool) -> None:
        # The last item of an answer that was cut short is itself cut short.
        item = self._items.done(block, _status(self.stop) if last else "completed")
        self._output.append(item)
        text = block.text
        names = self._items.events(block)
        if self._items.waits(block):
            self._at_once(block, item)
        elif names is None:
            done = {"name": block.name, "arguments": item["arguments"]}
            self._part("response.function_call_arguments.done", block, done)
        else:
            fields: Json = {names.index: 0, names.field: text}
            if block.sort == "text":
                fields["logprobs"] = []
            self._part(f"{names.text}.done", block, fields)
            self._part(names.closed, block, {names.index: 0, "part": self._items.part(block, text)})
        self._event("response.output_item.done", {"output_index": block.index, "item": item})

    def _at_once(self, block: Block, item: Json) -> None:
        """The events of a call that could not be told piece by piece, because its item is made of all of them."""
        begun = item | {"status": "in_progress"}
        given: list[tuple[str, Json]] = []
        match item["type"]:
            case "custom_tool_call":
                begun["input"] = ""
                given = [("custom_tool_call_input.delta", {"delta": item["input"]})]
                given.append(("custom_tool_call_input.done", {"input": item["input"]}))
            case "function_call":
                begun["arguments"] = ""
                given = [("function_call_arguments.delta", {"delta": item["arguments"]})]
                done = {"name": item["name"], "arguments": item["arguments"]}
                given.append(("function_call_arguments.done", done))
            case "shell_call":
                begun["action"] = item["action"] | {"commands": []}
                for n, command in enumerate(item["action"]["commands"]):
                    given.append(("shell_call_command.added", {"command_index": n, "command": ""}))
                    given.append(("shell_call_command.delta", {"command_index": n, "delta": command}))
                    given.append(("shell_call_command.done", {"command_index": n, "command": command}))
        self._event("response.output_item.added", {"output_index": block.index, "item": begun})
        for name, fields in given:
            self._part(f"response.{name}", block, fields)

    def ended(self) -> None:
        status = _status(self.stop)
        whole = _response(self._shape, self._first, status, self._output, self.stop, self.used)
        self._event(f"response.{status}", {"response": whole})

    def _part(self, name: str, block: Block, fields: Json) -> None:
        self._event(name, {"item_id": self._items.id(block), "output_index": block.index, **fields})

    def _event(self, name: str, fields: Json) -> None:
        self.out.append(named(name, {"type": name, "sequence_number": self._sequence, **fields}))
        self._sequence += 1


class _Names(msgspec.Struct, frozen=True):
    """Of the events about the one part an item has."""

    text: str
    field: str
    index: str = "content_index"
    opened: str = "response.content_part.added"
    closed: str = "response.content_part.done"


_TEXT = _Names("response.output_text", "text")
_REFUSAL = _Names("response.refusal", "refusal")
_REASONING = _Names("response.reasoning_text", "text")
_SUMMARY = _Names(
    "response.reasoning_summary_text",
    "text",
    "summary_index",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
)


class _Items:
    """Output items of the blocks of an answer."""

    def __init__(self, shape: ResponseShape) -> None:
        self._shape = shape

    def events(self, block: Block) -> _Names | None:
        """None: a call, which has no parts."""
        if block.sort == "tool":
            return None
        if block.sort == "thinking":
            return _SUMMARY if self._shape.summarised else _REASONING
        return _REFUSAL if block.sort == "refusal" else _TEXT

    def id(self, block: Block) -> str:
        if block.sort == "tool":
            return f"{PREFIXES[self._tool(block).sort]}_{self._shape.token}_{block.index}"
        prefix = "rs" if block.sort == "thinking" else "msg"
        return f"{prefix}_{self._shape.token}_{block.index}"

    def _tool(self, block: Block) -> Tool:
        return self._shape.tools.called(block.name)

    def waits(self, block: Block) -> bool:
        """Whether it is told as a whole: what kind of item it is is known when all of it is here."""
        return block.sort == "tool" and self._tool(block).sort != "function"

    def part(self, block: Block, text: str) -> Json:
        if block.sort == "thinking":
            return {"type": "summary_text" if self._shape.summarised else "reasoning_text", "text": text}
        if block.sort == "refusal":
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}

    def empty(self, block: Block) -> Json:
        """An item that has just begun."""
        return self._item(block, "in_progress", [], "")

    def done(self, block: Block, status: str) -> Json:
        return self._item(block, status, [self.part(block, block.text)], block.text)

    def _item(self, block: Block, status: str, parts: list[Json], text: str) -> Json:
        item_id = self.id(block)
        if block.sort == "tool":
            call_id = block.call_id or f"call_{self._shape.token}_{block.index}"
            arguments = text if text or status == "in_progress" else "{}"
            return item_of(self._tool(block), item_id, call_id, arguments, status)
        if block.sort == "thinking":
            if self._shape.summarised:
                return {"id": item_id, "type": "reasoning", "status": status, "summary": parts}
            return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": parts}
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": parts}


def _status(stop: Stop) -> str:
    return "incomplete" if stop.incomplete else "completed"


def _last(status: str, block: Block, blocks: list[Block]) -> str:
    return status if block is blocks[-1] else "completed"


def _response(
    shape: ResponseShape, chunk: Chunk, status: str, output: list[Json], stop: Stop, used: TokenUsage | None
) -> Json:
    reason = stop.incomplete if status == "incomplete" else None
    return {
        **shape.echo,
        "id": f"resp_{shape.token}",
        "object": "response",
        "created_at": int(chunk.created or 0),
        "completed_at": int(shape.clock()) if status == "completed" else None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "model": chunk.model or shape.echo["model"],
        "output": output,
        "previous_response_id": None,
        "store": False,
        "usage": None if used is None else response_usage(used),
    }
