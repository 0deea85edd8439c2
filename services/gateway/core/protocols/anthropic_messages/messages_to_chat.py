"""An Anthropic Messages request as an OpenAI Chat request.

Each message becomes the same messages whatever follows it, so a longer conversation begins with the same prompt
and an engine's prefix cache holds. Shapes: Anthropic's Messages reference and OpenAI's Chat reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.gateway.core.json.fields import (
    Json,
    Translated,
    fields,
    items,
    left_out,
    missing,
    number,
    one_of,
    text,
    unmappable,
)
from services.gateway.core.json.lossless import encoded
from services.gateway.core.protocols.thinking import Thinking, effort_of

from .tools import client_tool

_SAME = ("model", "stream", "temperature", "top_p", "top_k")
_NOT_HERE = {
    "container": "code execution is not offered here",
    "mcp_servers": "MCP servers are not called from here; offer their tools in 'tools'",
}
_HINTS = (
    *("service_tier", "inference_geo", "speed", "diagnostics", "context_management", "user_profile_id"),
    *("workspace_id", "cache_control"),
)
"""Fields that change how an answer is made, not what it is: left out, with a warning."""
_CHATS_OWN = frozenset(
    {
        *("n", "best_of", "logprobs", "top_logprobs", "functions", "function_call", "response_format"),
        *("stream_options", "audio", "modalities", "prompt", "input", "stop", "max_completion_tokens"),
        *("parallel_tool_calls", "continue_final_message", "add_generation_prompt", "user", "reasoning_effort"),
    }
)
"""Fields of Chat that mean something else, or nothing, in Messages."""
_MAPPED = frozenset(
    {
        *("max_tokens", "messages", "system", "stop_sequences", "tools", "tool_choice", "metadata", "thinking"),
        *("output_config", "output_format"),
    }
)
_PARTS = {
    "text": ("type", "text", "cache_control", "citations"),
    "image": ("type", "source", "cache_control"),
    "document": ("type", "source", "title", "context", "cache_control", "citations"),
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def request(body: Json, thinking: Thinking = "reasoning") -> Translated:
    """The chat request. Raises Fault naming the field that is wrong or cannot be mapped.

    Fields that are neither Anthropic's nor Chat's (an engine's own, such as ``min_p``) travel untouched.
    """
    return _Request(body, thinking).translated()


class _Request:
    def __init__(self, body: Json, thinking: Thinking) -> None:
        self._body = body
        self._thinking = thinking
        self._warnings: list[str] = []
        self._hosted: set[str] = set()
        """Names of tools that were left out."""

    def translated(self) -> Translated:
        body, out = self._body, Json()
        text(body.get("model"), "model")
        for name, value in body.items():
            if name in _SAME:
                out[name] = value
            elif name in _NOT_HERE and value:
                raise unmappable(name, _NOT_HERE[name])
            elif name in _CHATS_OWN:
                raise unmappable(name, "the Messages API has no such field")
            elif name in _HINTS and value is not None:
                self._warnings.append(f"{name} has no meaning for this model and was left out")
            elif name not in _MAPPED and name not in _NOT_HERE and name not in _HINTS:
                out[name] = value
        out["max_tokens"] = number(body.get("max_tokens"), "max_tokens")
        messages: list[Json] = []
        self._system(messages)
        given = items(body.get("messages"), "messages")
        if not given:
            raise missing("messages.0")
        for index, message in enumerate(given):
            self._message(fields(message, f"messages.{index}"), f"messages.{index}", messages)
        out["messages"] = messages
        if (last := messages[-1])["role"] == "assistant" and not last.get("tool_calls"):
            # The answer goes on where the client's last message ends: vLLM's and SGLang's names for it.
            out |= {"continue_final_message": True, "add_generation_prompt": False}
        if body.get("stop_sequences"):
            stops = items(body["stop_sequences"], "stop_sequences")
            out["stop"] = [text(stop, f"stop_sequences.{n}") for n, stop in enumerate(stops)]
        self._tools(out)
        self._output(out)
        metadata = fields(body.get("metadata") or {}, "metadata")
        left_out(metadata, ("user_id",), "metadata", self._warnings)
        if metadata.get("user_id") is not None:
            out["user"] = text(metadata["user_id"], "metadata.user_id")
        return Translated(out, self._warnings)

    # what the answer should be

    def _tools(self, out: Json) -> None:
        body = self._body
        if tools := self._offered():
            out["tools"] = tools
        if body.get("tool_choice") is None:
            return
        choice = fields(body["tool_choice"], "tool_choice")
        left_out(choice, ("type", "name", "disable_parallel_tool_use"), "tool_choice", self._warnings)
        kind = choice.get("type")
        if kind == "tool":
            name = text(choice.get("name"), "tool_choice.name")
            if name in self._hosted:
                raise unmappable("tool_choice.name", f"{name!r} runs at Anthropic only; choose a tool of your own")
            out["tool_choice"] = {"type": "function", "function": {"name": name}}
        else:
            out["tool_choice"] = one_of(kind, _CHOICES, "tool_choice.type")
        if choice.get("disable_parallel_tool_use"):
            out["parallel_tool_calls"] = False

    def _offered(self) -> list[Json]:
        """The tools the client runs; what runs at Anthropic is left out where there is something else to call."""
        tools: list[Json] = []
        hosted: list[tuple[str, str]] = []
        for tool, at in self._listed():
            kind = fields(tool, at).get("type")
            if kind is not None and kind != "custom" and client_tool(text(kind, f"{at}.type")) is None:
                hosted.append((at, kind))
                self._hosted.add(str(tool.get("name")))
            else:
                tools.append(self._tool(tool, at))
        for at, kind in hosted:
            if not tools:
                raise unmappable(f"{at}.type", f"{kind!r} runs at Anthropic only; offer a tool of your own")
            self._warnings.append(f"{at}: {kind!r} runs at Anthropic only and was left out")
        return tools

    def _listed(self) -> Iterator[tuple[Any, str]]:
        """Wherever tools stand: in the request, and in the conversation since it went on."""
        for n, tool in enumerate(items(self._body.get("tools") or [], "tools")):
            yield tool, f"tools.{n}"
        for m, message in enumerate(self._body["messages"]):
            content = message.get("content")
            for n, block in enumerate(content if isinstance(content, list) else ()):
                if block.get("type") == "tool_addition":
                    at = f"messages.{m}.content.{n}.tool"
                    added = fields(block.get("tool"), at)
                    if added.get("type") == "tool_definition":
                        yield added.get("definition"), f"{at}.definition"

    def _tool(self, tool: Any, at: str) -> Json:
        known = client_tool(tool["type"]) if tool.get("type") not in (None, "custom") else None
        own = ("input_schema", "description") if known is None else ()
        left_out(tool, ("type", "name", "strict", "cache_control", *own), at, self._warnings)
        function: Json = {"name": text(tool.get("name"), f"{at}.name")}
        if known is not None:
            function |= {"description": known.description, "parameters": known.parameters}
        else:
            if tool.get("description") is not None:
                function["description"] = tool["description"]
            function["parameters"] = fields(tool.get("input_schema"), f"{at}.input_schema")
        if tool.get("strict") is not None:
            function["strict"] = tool["strict"]
        out: Json = {"type": "function", "function": function}
        if cache := tool.get("cache_control"):
            out["cache_control"] = cache
        return out

    def _output(self, out: Json) -> None:
        body = self._body
        config = fields(body.get("output_config") or {}, "output_config")
        left_out(config, ("effort", "format"), "output_config", self._warnings)
        if wanted := body.get("thinking"):
            kind = fields(wanted, "thinking").get("type")
            if kind == "enabled":
                out["reasoning_effort"] = effort_of(number(wanted.get("budget_tokens"), "thinking.budget_tokens"))
            elif kind == "disabled":
                # vLLM's, SGLang's and llama.cpp's way; a template without the switch ignores it.
                out["chat_template_kwargs"] = {**(body.get("chat_template_kwargs") or {}), "enable_thinking": False}
            elif kind not in ("adaptive", "between_tools"):
                raise unmappable("thinking.type", f"{kind!r} is none of enabled, disabled, adaptive")
        if effort := config.get("effort"):
            text(effort, "output_config.effort")
            out["reasoning_effort"] = "high" if effort in ("xhigh", "max") else effort
        form, at = config.get("format"), "output_config.format"
        if form is None:
            form, at = body.get("output_format"), "output_format"
        if form is not None:
            if fields(form, at).get("type") != "json_schema":
                raise unmappable(f"{at}.type", "only json_schema is known")
            schema = {"name": "output", "schema": fields(form.get("schema"), f"{at}.schema"), "strict": True}
            out["response_format"] = {"type": "json_schema", "json_schema": schema}

    # what was said

    def _system(self, messages: list[Json]) -> None:
        system = self._body.get("system")
        if system is None or system in ("", []):
            return
        if isinstance(system, str):
            messages.append({"role": "system", "content": system})
            return
        parts = [self._part(block, f"system.{n}", ("text",)) for n, block in enumerate(items(system, "system"))]
        messages.append({"role": "system", "content": _plain(parts)})

    def _message(self, message: Json, at: str, out: list[Json]) -> None:
        role = text(message.get("role"), f"{at}.role")
        if role not in ("user", "assistant", "system"):
            raise unmappable(f"{at}.role", f"{role!r} is neither user nor assistant")
        left_out(message, ("role", "content"), at, self._warnings)
        content = message.get("content")
        if role == "system" and out and out[-1]["role"] != "system":
            self._later(message, at, out)
            return
        if isinstance(content, str):
            out.append({"role": role, "content": content})
            return
        blocks = [
            (fields(block, f"{at}.content.{n}"), f"{at}.content.{n}")
            for n, block in enumerate(items(content, f"{at}.content"))
        ]
        if role == "assistant":
            out.append(self._assistant(blocks))
            return
        rest = []
        for block, where in blocks:
            if block.get("type") == "tool_result":
                out.append(self._result(block, where))
            else:
                rest.append(self._part(block, where, ("text", "image", "document")))
        if rest or not blocks:
            out.append({"role": role, "content": _plain(rest)})

    def _later(self, message: Json, at: str, out: list[Json]) -> None:
        """A system message in the middle. Most templates know only one that comes first, and want turns to alternate:
        its text belongs to the user's turn before it, or is one."""
        blocks = [{"type": "text", "text": message["content"]}] if isinstance(message.get("content"), str) else None
        parts = [
            self._part(block, f"{at}.content.{n}", ("text",))
            for n, block in enumerate(items(message.get("content"), f"{at}.content") if blocks is None else blocks)
            if fields(block, f"{at}.content.{n}").get("type") not in _CHANGES
        ]
        if not parts:
            return
        if out[-1]["role"] == "user":
            before = out[-1]["content"]
            out[-1]["content"] = content = [_text(before)] if isinstance(before, str) else before
            content += parts
        else:
            out.append({"role": "user", "content": _plain(parts)})

    def _assistant(self, blocks: list[tuple[Json, str]]) -> Json:
        parts: list[Json] = []
        calls: list[Json] = []
        thoughts: list[Json] = []
        for block, at in blocks:
            kind = block.get("type")
            if kind == "tool_use":
                left_out(block, ("type", "id", "name", "input", "cache_control", "caller"), at, self._warnings)
                calls.append(_call(block, at))
            elif kind in ("thinking", "redacted_thinking"):
                thoughts.append(block)
                if kind == "redacted_thinking" and self._thinking == "reasoning":
                    self._warnings.append(f"{at}: only the model that wrote redacted thinking can read it; left out")
            else:
                parts.append(self._part(block, at, ("text",)))
        message: Json = {"role": "assistant", "content": _plain(parts) if parts or not calls else None}
        if thoughts and self._thinking == "pass":
            message["thinking_blocks"] = thoughts
        elif self._thinking == "reasoning" and (thinking := "".join(map(_thought, thoughts))):
            message["reasoning_content"] = thinking
        if calls:
            message["tool_calls"] = calls
        return message

    def _result(self, block: Json, at: str) -> Json:
        """A tool's result. Chat cannot mark one as an error: the text says so."""
        call_id = text(block.get("tool_use_id"), f"{at}.tool_use_id")
        left_out(block, ("type", "tool_use_id", "content", "is_error", "cache_control"), at, self._warnings)
        content = block.get("content")
        if content is None:
            content = ""
        if isinstance(content, list):
            parts = [
                self._part(fields(part, f"{at}.content.{n}"), f"{at}.content.{n}", ("text", "image", "document"))
                for n, part in enumerate(content)
            ]
            content = _plain(parts)
        elif not isinstance(content, str):
            text(content, f"{at}.content")
        if block.get("is_error"):
            content = f"Error: {content}" if isinstance(content, str) else [_text("Error:"), *content]
        if cache := block.get("cache_control"):
            content = [_text(content)] if isinstance(content, str) else content
            content[-1] = {**content[-1], "cache_control": cache}
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    def _part(self, block: Any, at: str, kinds: tuple[str, ...]) -> Json:
        """A content part of text, an image or a document, with its ``cache_control`` where it stands."""
        kind = text(fields(block, at).get("type"), f"{at}.type")
        if (note := _note(kind, block, at)) is not None:
            part = _text(note)
            if cache := block.get("cache_control"):
                part["cache_control"] = cache
            return part
        if kind not in kinds:
            raise unmappable(f"{at}.type", f"{kind!r} cannot be given to this model here; it takes {', '.join(kinds)}")
        left_out(block, _PARTS[kind], at, self._warnings)
        if kind == "text":
            part = _text(text(block.get("text"), f"{at}.text"))
            if block.get("citations"):
                self._warnings.append(f"{at}.citations were left out: the model reads the text only")
        elif kind == "image":
            part = {"type": "image_url", "image_url": {"url": _url(block, at)}}
        else:
            part = self._document(block, at)
        if cache := block.get("cache_control"):
            part["cache_control"] = cache
        return part

    def _document(self, block: Json, at: str) -> Json:
        source = fields(block.get("source"), f"{at}.source")
        kind = source.get("type")
        if fields(block.get("citations") or {}, f"{at}.citations").get("enabled"):
            self._warnings.append(f"{at}.citations: this model does not cite; its answer has none")
        named = [text(block[name], f"{at}.{name}") for name in ("title", "context") if block.get(name)]
        if kind == "text":
            return _text("\n\n".join([*named, text(source.get("data"), f"{at}.source.data")]))
        if kind == "content" and isinstance(source.get("content"), str):
            return _text("\n\n".join([*named, source["content"]]))
        if kind == "base64":
            return {
                "type": "file",
                "file": {
                    "filename": text(block.get("title") or "document", f"{at}.title"),
                    "file_data": _url(block, at),
                },
            }
        raise unmappable(f"{at}.source.type", f"a document from {kind!r} cannot be given to this model; send its text")


_CHANGES = ("tool_addition", "tool_removal")
_RAN = ("server_tool_use", "mcp_tool_use", "mcp_tool_result")
"""At Anthropic; so did everything whose type ends in ``_tool_result``."""
_SILENT = ("type", "id", "tool_use_id", "cache_control", "caller", "is_error")


def _note(kind: str, block: Json, at: str) -> str | None:
    """A block no other model has, as text: what ran at Anthropic, what was found, what was said. None: another."""
    if kind == "search_result":
        parts = enumerate(items(block.get("content"), f"{at}.content"))
        texts = [text(fields(part, f"{at}.content.{n}").get("text"), f"{at}.content.{n}.text") for n, part in parts]
        return "\n\n".join([text(block.get(name), f"{at}.{name}") for name in ("title", "source")] + texts)
    if kind == "tool_reference":
        return f"The tool {text(block.get('tool_name'), f'{at}.tool_name')} can be called now."
    if kind == "compaction":
        return text(block.get("content") or "", f"{at}.content")
    if kind in _RAN or kind.endswith("_tool_result"):
        legible = {name: _legible(value) for name, value in block.items() if name not in _SILENT}
        return f"[{kind.removesuffix('_block').replace('_', ' ')}: {encoded(legible).decode()}]"
    return None


def _legible(value: Any) -> Any:
    """Without what only Anthropic can read."""
    if isinstance(value, dict):
        return {name: _legible(inner) for name, inner in value.items() if not name.startswith("encrypted_")}
    return [_legible(inner) for inner in value] if isinstance(value, list) else value


def _thought(block: Json) -> str:
    thinking = block.get("thinking")
    return thinking if isinstance(thinking, str) else ""


def _text(value: str) -> Json:
    return {"type": "text", "text": value}


def _plain(parts: list[Json]) -> Any:
    """Content as text where it is one text and nothing else, as parts otherwise."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return parts[0]["text"]
    return parts


def _url(block: Json, at: str) -> str:
    source = fields(block.get("source"), f"{at}.source")
    kind = source.get("type")
    if kind == "url":
        return text(source.get("url"), f"{at}.source.url")
    if kind != "base64":
        raise unmappable(f"{at}.source.type", f"{kind!r} is neither base64 nor url; send the bytes as base64")
    media = text(source.get("media_type"), f"{at}.source.media_type")
    return f"data:{media};base64,{text(source.get('data'), f'{at}.source.data')}"


def _call(block: Json, at: str) -> Json:
    arguments = encoded(fields(block.get("input"), f"{at}.input")).decode()
    call = {
        "id": text(block.get("id"), f"{at}.id"),
        "type": "function",
        "function": {"name": text(block.get("name"), f"{at}.name"), "arguments": arguments},
    }
    if cache := block.get("cache_control"):
        call["cache_control"] = cache
    return call
