"""An OpenAI Chat request as a Responses request, for a backend that speaks Responses only.

The backend is asked to store nothing.
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
    text,
    unmappable,
)

_SAME = ("model", "stream", "temperature", "top_p", "parallel_tool_calls", "user", "metadata", "service_tier")
_SAME_TOO = ("safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_NOT_THERE = {
    "n": "this model gives one answer: n must be 1",
    "stop": "this model takes no stop sequences",
    "logprobs": "log probabilities are not asked for from this model",
    "top_logprobs": "log probabilities are not asked for from this model",
    "logit_bias": "this model takes no logit_bias",
    "audio": "this model does not speak",
    "functions": "use 'tools'",
    "function_call": "use 'tool_choice'",
    "web_search_options": "web search is not offered here",
}
_HINTS = ("seed", "frequency_penalty", "presence_penalty", "store", "prediction")
_MAPPED = frozenset(
    {
        *("messages", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "response_format"),
        *("reasoning_effort", "verbosity", "stream_options", "modalities"),
    }
)
_OF_MESSAGES = ("role", "content", "tool_calls", "tool_call_id", "refusal", "reasoning_content", "reasoning")
_ROLES = ("system", "developer", "user", "assistant")


def request(body: Json) -> Translated:
    """The Responses request. Raises Fault naming the field that is wrong or cannot be mapped."""
    out: Json = {}
    warnings: list[str] = []
    text(body.get("model"), "model")
    for name, value in body.items():
        if name in _SAME or name in _SAME_TOO:
            out[name] = value
        elif name in _NOT_THERE:
            if value and not (name == "n" and value == 1):
                raise unmappable(name, _NOT_THERE[name])
        elif name in _HINTS:
            if value:
                warnings.append(f"{name} has no meaning for this model and was left out")
        elif name not in _MAPPED:
            raise unmappable(name, "this model takes no such field")
    out["store"] = False
    given = items(body.get("messages"), "messages")
    if not given:
        raise missing("messages.0")
    out["input"] = [
        item
        for n, message in enumerate(given)
        for item in _items(fields(message, f"messages.{n}"), f"messages.{n}", warnings)
    ]
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None:
        out["max_output_tokens"] = limit
    if body.get("tools"):
        out["tools"] = [_tool(tool, f"tools.{n}") for n, tool in enumerate(items(body["tools"], "tools"))]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        chosen = fields(choice.get("function"), "tool_choice.function").get("name")
        choice = {"type": "function", "name": text(chosen, "tool_choice.function.name")}
    if choice is not None:
        out["tool_choice"] = choice
    if body.get("reasoning_effort") is not None:
        out["reasoning"] = {"effort": body["reasoning_effort"]}
    if config := _text_config(body):
        out["text"] = config
    return Translated(out, warnings)


def _text_config(body: Json) -> Json:
    config: Json = {}
    form = fields(body.get("response_format") or {"type": "text"}, "response_format")
    if form.get("type") == "json_schema":
        config["format"] = {"type": "json_schema", **fields(form.get("json_schema"), "response_format.json_schema")}
    elif form.get("type") == "json_object":
        config["format"] = {"type": "json_object"}
    elif form.get("type") != "text":
        raise unmappable("response_format.type", f"{form.get('type')!r} is none of text, json_schema, json_object")
    if body.get("verbosity") is not None:
        config["verbosity"] = body["verbosity"]
    return config


def _items(message: Json, at: str, warnings: list[str]) -> list[Json]:
    role = text(message.get("role"), f"{at}.role")
    left_out(message, _OF_MESSAGES, at, warnings)
    if role == "tool":
        call_id = text(message.get("tool_call_id"), f"{at}.tool_call_id")
        output = _content(message.get("content"), f"{at}.content", "input_text", warnings)
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    if role not in _ROLES:
        raise unmappable(f"{at}.role", f"{role!r} is none of {', '.join(_ROLES)}, tool")
    listed: list[Json] = []
    if message.get("reasoning_content") or message.get("reasoning"):
        warnings.append(f"{at}.reasoning_content: this model takes back only its own reasoning items; left out")
    kind = "output_text" if role == "assistant" else "input_text"
    content = message.get("content")
    parts = [] if content is None else _content(content, f"{at}.content", kind, warnings)
    if message.get("refusal"):
        parts = [{"type": kind, "text": parts}] if isinstance(parts, str) and parts else list(parts)
        parts.append({"type": "refusal", "refusal": text(message["refusal"], f"{at}.refusal")})
    calls = message.get("tool_calls") or []
    if parts or not calls:
        listed.append({"type": "message", "role": role, "content": parts or ""})
    for n, call in enumerate(items(calls, f"{at}.tool_calls")):
        listed.append(_call(fields(call, f"{at}.tool_calls.{n}"), f"{at}.tool_calls.{n}"))
    return listed


def _content(content: Any, at: str, kind: str, warnings: list[str]) -> Any:
    if isinstance(content, str):
        return content
    parts = [fields(part, f"{at}.{n}") for n, part in enumerate(items(content, at))]
    for n, part in enumerate(parts):
        if "cache_control" in part:
            warnings.append(f"{at}.{n}.cache_control was left out: this model caches by itself")
    return [_part(part, f"{at}.{n}", kind) for n, part in enumerate(parts)]


def _part(part: Json, at: str, kind: str) -> Json:
    match part.get("type"):
        case "text":
            return {"type": kind, "text": text(part.get("text"), f"{at}.text")}
        case "refusal":
            return {"type": "refusal", "refusal": text(part.get("refusal"), f"{at}.refusal")}
        case "image_url":
            image = fields(part.get("image_url"), f"{at}.image_url")
            out = {"type": "input_image", "image_url": text(image.get("url"), f"{at}.image_url.url")}
            return out | {"detail": image.get("detail") or "auto"}
        case "file":
            return {"type": "input_file", **fields(part.get("file"), f"{at}.file")}
        case other:
            raise unmappable(f"{at}.type", f"{other!r} cannot be given to this model; send text, image_url or file")


def _call(call: Json, at: str) -> Json:
    if call.get("type", "function") != "function":
        raise unmappable(f"{at}.type", f"{call['type']!r} cannot be given to this model; only functions can")
    function = fields(call.get("function"), f"{at}.function")
    return {
        "type": "function_call",
        "call_id": text(call.get("id"), f"{at}.id"),
        "name": text(function.get("name"), f"{at}.function.name"),
        "arguments": text(function.get("arguments"), f"{at}.function.arguments"),
    }


def _tool(tool: Any, at: str) -> Json:
    if fields(tool, at).get("type") != "function":
        raise unmappable(f"{at}.type", f"{tool.get('type')!r} cannot be offered to this model; only functions can")
    function = fields(tool.get("function"), f"{at}.function")
    text(function.get("name"), f"{at}.function.name")
    # Responses takes a function as strict unless it is told otherwise; Chat the other way round.
    return {"type": "function", "parameters": None, "strict": False, **function}
