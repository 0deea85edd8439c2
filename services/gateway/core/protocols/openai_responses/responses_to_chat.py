"""An OpenAI Responses request as a Chat request.

The items of ``input`` become messages: what the model said, thought and called in one turn becomes one assistant
message. Shapes: OpenAI's Responses and Chat references.
"""

from __future__ import annotations

from typing import Any

from services.gateway.core.json.fields import (
    Json,
    Translated,
    fields,
    items,
    left_out,
    missing,
    number,
    text,
    unmappable,
)
from services.gateway.core.protocols.thinking import Thinking

from .tool_items import call_of, output_of, told
from .tools import choose, tools_of

_SAME = ("model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "top_k")
_NOT_HERE = {
    "previous_response_id": "answers are not stored here: send the whole conversation in 'input'",
    "conversation": "conversations are not stored here: send the whole conversation in 'input'",
    "background": "answers are not made in the background here; leave it out",
    "prompt": "prompt templates are not stored here: send the text in 'instructions' and 'input'",
    "top_logprobs": "log probabilities are given by /v1/chat/completions only",
    "image": "images are not made here",
    "moderation": "moderation is set by the policies of this gateway",
}
_HINTS = (
    *("max_tool_calls", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("prompt_cache_options", "context_management", "access_programs", "background_options", "client_metadata"),
)
"""Fields that change how an answer is made, not what it is: left out, with a warning."""
_MAPPED = frozenset(
    {
        *("input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "reasoning", "metadata"),
        *("store", "include", "truncation", "stream_options"),
    }
)
_CHATS_OWN = frozenset(
    {
        *("n", "best_of", "logprobs", "functions", "function_call", "response_format", "messages", "max_tokens"),
        *("max_completion_tokens", "audio", "modalities", "stop", "reasoning_effort", "logit_bias"),
    }
)
"""Fields of Chat that mean something else, or nothing, in Responses."""
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = ("input_text", "output_text", "text")


def request(body: Json, thinking: Thinking = "reasoning") -> Translated:
    """The chat request. Raises Fault naming the field that is wrong or cannot be mapped.

    Fields that are neither of Responses nor of Chat (an engine's own, such as ``min_p``) travel untouched.
    """
    return _Request(body, thinking).translated()


class _Request:
    def __init__(self, body: Json, thinking: Thinking) -> None:
        self._body = body
        self._thinking = thinking
        self._warnings: list[str] = []
        self._messages: list[Json] = []
        self._instructions: list[str] = []
        """Of the first message, where that is a system message."""
        self._tools = tools_of(body, self._warnings)

    def translated(self) -> Translated:
        body, out = self._body, Json()
        text(body.get("model"), "model")
        for name, value in body.items():
            if value is None:
                continue
            if name in _NOT_HERE:
                if value is not False and value != 0:
                    raise unmappable(name, _NOT_HERE[name])
            elif name in _CHATS_OWN:
                raise unmappable(name, "the Responses API has no such field")
            elif name in _HINTS:
                self._warnings.append(f"{name} has no meaning for this model and was left out")
            elif name not in _MAPPED:
                out[name] = value
        if body.get("store"):
            self._warnings.append("store: answers are not stored here; 'store' of the answer is false")
        if body.get("truncation") == "auto":
            self._warnings.append("truncation: a conversation that is too long is refused here, never cut")
        for wanted in items(body.get("include") or [], "include"):
            self._warnings.append(f"include: {wanted!r} is not offered here")
        if body.get("instructions"):
            self._instructions.append(text(body["instructions"], "instructions"))
            self._messages.append({"role": "system", "content": self._instructions[0]})
        self._input()
        # Put together once: there may be very many pieces.
        if self._instructions:
            self._messages[0]["content"] = "\n\n".join(self._instructions)
        for message in self._messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "".join(message["reasoning_content"])
        out["messages"] = self._messages
        if body.get("max_output_tokens") is not None:
            out["max_tokens"] = number(body["max_output_tokens"], "max_output_tokens")
        choice = choose(self._tools, body.get("tool_choice"), self._warnings)
        if self._tools.functions:
            out["tools"] = list(self._tools.functions.values())
        if choice is not None:
            out["tool_choice"] = choice
        self._output(out)
        return Translated(out, self._warnings)

    def _output(self, out: Json) -> None:
        config = fields(self._body.get("text") or {}, "text")
        left_out(config, ("format", "verbosity"), "text", self._warnings)
        form = fields(config.get("format") or {"type": "text"}, "text.format")
        kind = form.get("type")
        if kind == "json_schema":
            text(form.get("name"), "text.format.name")
            fields(form.get("schema"), "text.format.schema")
            schema = {name: form[name] for name in ("name", "description", "schema", "strict") if name in form}
            out["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif kind == "json_object":
            out["response_format"] = {"type": "json_object"}
        elif kind != "text":
            raise unmappable("text.format.type", f"{kind!r} is none of text, json_schema, json_object")
        if config.get("verbosity") is not None:
            out["verbosity"] = config["verbosity"]
        reasoning = fields(self._body.get("reasoning") or {}, "reasoning")
        left_out(reasoning, ("effort", "summary", "generate_summary"), "reasoning", self._warnings)
        if reasoning.get("effort") is not None:
            out["reasoning_effort"] = text(reasoning["effort"], "reasoning.effort")

    # what was said

    def _input(self) -> None:
        given = self._body.get("input")
        if isinstance(given, str):
            self._messages.append({"role": "user", "content": given})
            return
        listed = items(given, "input")
        if not listed:
            raise missing("input.0")
        for index, item in enumerate(listed):
            self._item(fields(item, f"input.{index}"), f"input.{index}")

    def _item(self, item: Json, at: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                self._message(item, at)
            case "reasoning":
                if self._thinking == "reasoning" and (thinking := _thoughts(item, at)):
                    self._turn().setdefault("reasoning_content", []).append(thinking)
                elif item.get("encrypted_content"):
                    self._warnings.append(f"{at}: only the model that wrote encrypted reasoning can read it; left out")
            case "additional_tools":
                pass  # offered with the others
            case "compaction" | "compaction_summary" | "compaction_trigger":
                self._warnings.append(f"{at}: only OpenAI can read or make a compacted conversation; left out")
            case "item_reference":
                raise unmappable(f"{at}.type", "answers are not stored here: send the item itself")
            case None:
                raise missing(f"{at}.type")
            case _:
                self._tool_item(item, at)

    def _tool_item(self, item: Json, at: str) -> None:
        """A call, its result, or a note of what ran elsewhere."""
        if (called := call_of(item, at, self._tools)) is not None:
            function = {"name": called.name, "arguments": called.arguments}
            call = {"id": called.call_id, "type": "function", "function": function}
            self._turn().setdefault("tool_calls", []).append(call)
        elif (given := output_of(item, at)) is not None:
            call_id, output = given
            content = self._content(output, f"{at}.output")
            self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif (note := told(item)) is not None:
            self._say(note)
        else:
            raise unmappable(
                f"{at}.type",
                f"{item.get('type')!r} cannot be given to this model; it takes messages, calls and results",
            )

    def _say(self, content: Any) -> None:
        """More of what the assistant says in this turn."""
        turn = self._turn()
        if turn["content"] is None:
            turn["content"] = content
        else:
            turn["content"] = existing = _listed(turn["content"])
            existing += _listed(content)

    def _turn(self) -> Json:
        """The assistant's turn that is going on: everything of it is one message of Chat."""
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": None})
        return self._messages[-1]

    def _message(self, item: Json, at: str) -> None:
        role = _ROLES.get(text(item.get("role"), f"{at}.role"))
        if role is None:
            raise unmappable(f"{at}.role", f"{item['role']!r} is none of user, assistant, system, developer")
        content = self._content(item.get("content"), f"{at}.content")
        if role == "assistant":
            self._say(content)
            return
        if role == "system":
            content = _joined(content)
            if len(self._messages) == 1 and self._messages[0]["role"] == "system":
                # Most templates know one system message.
                self._instructions.append(content)
                return
            if not self._messages:
                self._instructions.append(content)
        self._messages.append({"role": role, "content": content})

    def _content(self, content: Any, at: str) -> Any:
        if isinstance(content, str):
            return content
        parts = [self._part(fields(part, f"{at}.{n}"), f"{at}.{n}") for n, part in enumerate(items(content, at))]
        if not parts:
            return ""
        return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts

    def _part(self, part: Json, at: str) -> Json:
        kind = part.get("type")
        if kind in _TEXTS:
            return {"type": "text", "text": text(part.get("text"), f"{at}.text")}
        if kind == "refusal":
            return {"type": "text", "text": text(part.get("refusal"), f"{at}.refusal")}
        if kind == "input_image":
            if part.get("image_url") is None:
                raise unmappable(f"{at}.file_id", "files are not stored here: send 'image_url'")
            image = {"url": text(part["image_url"], f"{at}.image_url")}
            if part.get("detail") is not None:
                image["detail"] = part["detail"]
            return {"type": "image_url", "image_url": image}
        if kind == "input_file":
            if part.get("file_data") is None:
                named = "file_url" if part.get("file_url") else "file_id"
                raise unmappable(f"{at}.{named}", "files are neither stored nor fetched here: send 'file_data'")
            file = {name: part[name] for name in ("filename", "file_data") if part.get(name) is not None}
            return {"type": "file", "file": file}
        raise unmappable(f"{at}.type", f"{kind!r} cannot be given to this model; it takes text, images and files")


def _listed(content: Any) -> list[Json]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _joined(content: Any) -> str:
    """Of a system message, which has nothing but text."""
    return "\n\n".join(part["text"] for part in _listed(content) if part["type"] == "text")


def _thoughts(item: Json, at: str) -> str:
    """The reasoning's own text where there is one, else its summary."""
    for name, joint in (("content", ""), ("summary", "\n\n")):
        parts = items(item.get(name) or [], f"{at}.{name}")
        texts = [
            text(fields(part, f"{at}.{name}.{n}").get("text"), f"{at}.{name}.{n}.text") for n, part in enumerate(parts)
        ]
        if texts:
            return joint.join(texts)
    return ""
