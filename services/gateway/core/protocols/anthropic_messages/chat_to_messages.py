"""An OpenAI Chat request as an Anthropic Messages request, for a backend that speaks Messages."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from services.gateway.core.json.fields import (
    Json,
    Translated,
    fields,
    items,
    left_out,
    missing,
    one_of,
    text,
    unmappable,
)
from services.gateway.core.json.lossless import decoded
from services.gateway.core.protocols.thinking import is_signed

_SAME = ("model", "stream", "temperature", "top_p", "top_k", "service_tier")
_NOT_THERE = {
    "n": "this model gives one answer: n must be 1",
    "best_of": "this model gives one answer",
    "logprobs": "this model gives no log probabilities",
    "top_logprobs": "this model gives no log probabilities",
    "logit_bias": "this model takes no logit_bias",
    "audio": "this model does not speak",
    "functions": "use 'tools'",
    "function_call": "use 'tool_choice'",
    "web_search_options": "web search is not offered here",
}
_HINTS = (
    *("seed", "frequency_penalty", "presence_penalty", "store", "prediction", "verbosity", "prompt_cache_key"),
    *("safety_identifier", "prompt_cache_retention", "metadata"),
)
_MAPPED = frozenset(
    {
        *("messages", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice", "parallel_tool_calls"),
        *("response_format", "user", "reasoning_effort", "stream_options", "modalities"),
    }
)
_OF_MESSAGES = (
    *("role", "content", "tool_calls", "tool_call_id", "refusal", "thinking_blocks", "reasoning_content", "reasoning"),
)
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_EFFORTS = {"minimal": "low", "xhigh": "max"}
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


def request(body: Json, default_max_tokens: int) -> Translated:
    """The Messages request. Raises Fault naming the field that is wrong or cannot be mapped.

    ``default_max_tokens``: Anthropic wants a limit; OpenAI's clients often send none.
    """
    return _Request(body).translated(default_max_tokens)


class _Request:
    def __init__(self, body: Json) -> None:
        self._body = body
        self._warnings: list[str] = []

    def translated(self, default_max_tokens: int) -> Translated:
        body, out = self._body, Json()
        text(body.get("model"), "model")
        for name, value in body.items():
            if name in _SAME:
                out[name] = value
            elif name in _NOT_THERE:
                if value and not (name == "n" and value == 1):
                    raise unmappable(name, _NOT_THERE[name])
            elif name in _HINTS:
                if value:
                    self._warnings.append(f"{name} has no meaning for this model and was left out")
            elif name not in _MAPPED:
                raise unmappable(name, "this model takes no such field")
        out["max_tokens"] = body.get("max_completion_tokens") or body.get("max_tokens") or default_max_tokens
        system, messages = self._messages()
        if system:
            out["system"] = _plain(system)
        out["messages"] = messages
        if stop := body.get("stop"):
            out["stop_sequences"] = [stop] if isinstance(stop, str) else items(stop, "stop")
        self._tools(out)
        self._output(out)
        if body.get("user"):
            out["metadata"] = {"user_id": body["user"]}
        return Translated(out, self._warnings)

    def _tools(self, out: Json) -> None:
        body = self._body
        if body.get("tools"):
            out["tools"] = [_tool(tool, f"tools.{n}") for n, tool in enumerate(items(body["tools"], "tools"))]
        choice = body.get("tool_choice")
        if isinstance(choice, dict):
            name = fields(choice.get("function"), "tool_choice.function").get("name")
            wanted: Json | None = {"type": "tool", "name": text(name, "tool_choice.function.name")}
        elif choice is None:
            wanted = {"type": "auto"} if body.get("parallel_tool_calls") is False and body.get("tools") else None
        else:
            wanted = {"type": one_of(choice, _CHOICES, "tool_choice")}
        if wanted is not None:
            if body.get("parallel_tool_calls") is False and wanted["type"] != "none":
                wanted["disable_parallel_tool_use"] = True
            out["tool_choice"] = wanted

    def _output(self, out: Json) -> None:
        config: Json = {}
        effort = self._body.get("reasoning_effort")
        if effort == "none":
            out["thinking"] = {"type": "disabled"}
        elif effort is not None:
            config["effort"] = _EFFORTS.get(text(effort, "reasoning_effort"), effort)
        form = fields(self._body.get("response_format") or {"type": "text"}, "response_format")
        if form.get("type") == "json_schema":
            schema = fields(form.get("json_schema"), "response_format.json_schema").get("schema")
            config["format"] = {"type": "json_schema", "schema": fields(schema, "response_format.json_schema.schema")}
        elif form.get("type") != "text":
            raise unmappable("response_format.type", f"{form.get('type')!r} is not offered; use json_schema")
        if config:
            out["output_config"] = config

    # what was said

    def _messages(self) -> tuple[list[Json], list[Json]]:
        system: list[Json] = []
        messages: list[Json] = []
        given = items(self._body.get("messages"), "messages")
        if not given:
            raise missing("messages.0")
        for index, message in enumerate(given):
            at = f"messages.{index}"
            role = text(fields(message, at).get("role"), f"{at}.role")
            left_out(message, _OF_MESSAGES, at, self._warnings)
            if role in ("system", "developer"):
                if messages:
                    self._warnings.append(f"{at}: this model takes system messages only first; it was moved there")
                system += self._content(message, at)
            elif role == "user":
                _append(messages, "user", self._content(message, at))
            elif role == "assistant":
                _append(messages, "assistant", self._assistant(message, at))
            elif role == "tool":
                _append(messages, "user", [self._result(message, at)])
            else:
                raise unmappable(f"{at}.role", f"{role!r} is none of system, developer, user, assistant, tool")
        for message in messages:
            message["content"] = _plain(message["content"])
        return system, messages

    def _content(self, message: Json, at: str) -> list[Json]:
        content = message.get("content")
        if content is None or content == "":
            return []
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        parts = enumerate(items(content, f"{at}.content"))
        return [self._part(fields(part, f"{at}.content.{n}"), f"{at}.content.{n}") for n, part in parts]

    def _part(self, part: Json, at: str) -> Json:
        kind = part.get("type")
        if kind in ("text", "refusal"):
            block: Json = {"type": "text", "text": text(part.get(kind), f"{at}.{kind}")}
        elif kind == "image_url":
            image = fields(part.get("image_url"), f"{at}.image_url")
            left_out(image, ("url",), f"{at}.image_url", self._warnings)
            url = text(image.get("url"), f"{at}.image_url.url")
            block = {"type": "image", "source": _source(url, f"{at}.image_url.url")}
        elif kind == "file":
            data = fields(part.get("file"), f"{at}.file")
            url = text(data.get("file_data"), f"{at}.file.file_data")
            block = {"type": "document", "source": _source(url, f"{at}.file.file_data")}
            if data.get("filename"):
                block["title"] = data["filename"]
        else:
            raise unmappable(f"{at}.type", f"{kind!r} cannot be given to this model; it takes text, image_url, file")
        if cache := part.get("cache_control"):
            block["cache_control"] = cache
        return block

    def _assistant(self, message: Json, at: str) -> list[Json]:
        blocks: list[Json] = []
        thoughts = message.get("thinking_blocks") or []
        for index, block in enumerate(items(thoughts, f"{at}.thinking_blocks")):
            if is_signed(fields(block, f"{at}.thinking_blocks.{index}")):
                blocks.append({name: value for name, value in block.items() if name != "index"})
            else:
                self._warnings.append(f"{at}.thinking_blocks.{index} has no signature of this model and was left out")
        if not thoughts and (message.get("reasoning_content") or message.get("reasoning")):
            self._warnings.append(f"{at}.reasoning_content: this model takes back only thinking it signed; left out")
        blocks += self._content(message, at)
        if message.get("refusal"):
            blocks.append({"type": "text", "text": text(message["refusal"], f"{at}.refusal")})
        calls = message.get("tool_calls") or []
        for index, call in enumerate(items(calls, f"{at}.tool_calls")):
            blocks.append(_use(fields(call, f"{at}.tool_calls.{index}"), f"{at}.tool_calls.{index}"))
        return blocks

    def _result(self, message: Json, at: str) -> Json:
        blocks = self._content(message, at)
        result: Json = {"type": "tool_result", "tool_use_id": text(message.get("tool_call_id"), f"{at}.tool_call_id")}
        if len(blocks) == 1 and "cache_control" in blocks[0]:
            # There is one place for it in a tool's result: the block as a whole.
            result["cache_control"] = blocks[0].pop("cache_control")
        result["content"] = _plain(blocks)
        return result


def _append(messages: list[Json], role: str, blocks: list[Json]) -> None:
    """Turns alternate, and all results of one turn's calls stand in one message."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def _plain(blocks: list[Json]) -> Any:
    if not blocks:
        return ""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        return blocks[0]["text"]
    return blocks


def _source(url: str, at: str) -> Json:
    if match := _DATA_URL.fullmatch(url):
        return {"type": "base64", "media_type": match.group(1), "data": match.group(2)}
    if not url.startswith(("http://", "https://")):
        raise unmappable(at, "send a data: URL with base64, or an http(s) URL")
    return {"type": "url", "url": url}


def _use(call: Json, at: str) -> Json:
    if call.get("type", "function") != "function":
        raise unmappable(f"{at}.type", f"{call['type']!r} cannot be given to this model; only functions can")
    function = fields(call.get("function"), f"{at}.function")
    arguments = function.get("arguments") or "{}"
    try:
        value = decoded(text(arguments, f"{at}.function.arguments"))
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise unmappable(f"{at}.function.arguments", "this model takes only a JSON object here")
    block: Json = {
        "type": "tool_use",
        "id": text(call.get("id"), f"{at}.id"),
        "name": text(function.get("name"), f"{at}.function.name"),
        "input": value,
    }
    if cache := call.get("cache_control"):
        block["cache_control"] = cache
    return block


def _tool(tool: Any, at: str) -> Json:
    if fields(tool, at).get("type") != "function":
        raise unmappable(f"{at}.type", f"{tool.get('type')!r} cannot be offered to this model; only functions can")
    function = fields(tool.get("function"), f"{at}.function")
    out: Json = {"name": text(function.get("name"), f"{at}.function.name")}
    if function.get("description") is not None:
        out["description"] = function["description"]
    out["input_schema"] = function.get("parameters") or {"type": "object", "properties": {}}
    if function.get("strict") is not None:
        out["strict"] = function["strict"]
    if cache := tool.get("cache_control"):
        out["cache_control"] = cache
    return out
