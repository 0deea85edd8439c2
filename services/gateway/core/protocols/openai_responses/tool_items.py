"""Calls of tools as the items Responses has for them, both ways, and their results as text.

What an engine calls is a function with arguments; what the client gets is the item of the tool it offered. Items and
fields: OpenAI's Responses reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from services.gateway.core.json.fields import (
    Json,
    fields,
    items,
    text,
)
from services.gateway.core.json.lossless import encoded
from services.gateway.core.protocols.tool_arguments import UNREAD, value_of

from .tools import (
    INPUT,
    Sort,
    Tool,
    Tools,
)

PREFIXES: dict[Sort, str] = {
    "function": "fc",
    "custom": "ctc",
    "local_shell": "lsh",
    "shell": "sh",
    "apply_patch": "apc",
    "tool_search": "tsc",
}
"""Of the ids of items."""


def item_of(tool: Tool, item_id: str, call_id: str, arguments: str, status: str) -> Json:
    """The item of a call. Arguments that do not fit the tool make it a plain function call: the client says so."""
    made = _MADE[tool.sort](arguments) if tool.sort in _MADE else None
    head: Json = {"id": item_id, "type": "function_call", "status": status}
    if made is None:
        call = head | {"arguments": arguments, "call_id": call_id, "name": tool.name}
    else:
        kind = {"custom": "custom_tool_call"}.get(tool.sort, f"{tool.sort}_call")
        call = head | {"type": kind, "call_id": call_id, **made}
        if tool.sort == "custom":
            call["name"] = tool.name
    if tool.namespace is not None:
        call["namespace"] = tool.namespace
    return call


def _custom(arguments: str) -> Json:
    """A model that writes the input itself, without the object around it, means the same."""
    value = value_of(arguments)
    given = value.get(INPUT)
    return {INPUT: given if isinstance(given, str) else arguments if value else ""}


def _local_shell(arguments: str) -> Json | None:
    value = value_of(arguments)
    command = value.get("command")
    if isinstance(command, str):
        command = ["bash", "-lc", command]
    if not _are_texts(command):
        return None
    env = value.get("env")
    action: Json = {"type": "exec", "command": command, "env": env if isinstance(env, dict) else {}}
    for name, kind in (("timeout_ms", int), ("user", str), ("working_directory", str)):
        action[name] = value[name] if isinstance(value.get(name), kind) else None
    return {"action": action}


def _shell(arguments: str) -> Json | None:
    value = value_of(arguments)
    commands = value.get("commands")
    if isinstance(commands, str):
        commands = [commands]
    if not _are_texts(commands):
        return None
    action: Json = {"commands": commands}
    for name in ("timeout_ms", "max_output_length"):
        action[name] = value[name] if isinstance(value.get(name), int) else None
    return {"action": action, "environment": {"type": "local"}}


def _apply_patch(arguments: str) -> Json | None:
    value = value_of(arguments)
    kind, path, diff = value.get("type"), value.get("path"), value.get("diff")
    if kind not in ("create_file", "update_file", "delete_file") or not isinstance(path, str):
        return None
    if kind == "delete_file":
        return {"operation": {"type": kind, "path": path}}
    return {"operation": {"type": kind, "path": path, "diff": diff}} if isinstance(diff, str) else None


def _tool_search(arguments: str) -> Json | None:
    value = value_of(arguments)
    return None if UNREAD in value else {"arguments": value, "execution": "client"}


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, str) for part in value)


_MADE: dict[Sort, Callable[[str], Json | None]] = {
    "custom": _custom,
    "local_shell": _local_shell,
    "shell": _shell,
    "apply_patch": _apply_patch,
    "tool_search": _tool_search,
}


# and back, out of a conversation


class Called(NamedTuple):
    call_id: str
    name: str
    """The engine's name of the function."""
    arguments: str


def call_of(item: Json, at: str, tools: Tools) -> Called | None:
    """A call in a conversation; None: the item is none. Raises Fault."""
    kind = item.get("type")
    namespace = item.get("namespace")
    if namespace is not None:
        text(namespace, f"{at}.namespace")
    if kind == "function_call":
        name, arguments = text(item.get("name"), f"{at}.name"), text(item.get("arguments"), f"{at}.arguments")
        return Called(text(item.get("call_id"), f"{at}.call_id"), tools.name_of(name, namespace), arguments)
    if kind == "custom_tool_call":
        name, given = text(item.get("name"), f"{at}.name"), text(item.get("input"), f"{at}.input")
        call_id = text(item.get("call_id"), f"{at}.call_id")
        return Called(call_id, tools.name_of(name, namespace), _json({INPUT: given}))
    if kind in ("local_shell_call", "shell_call"):
        name = kind.removesuffix("_call")
        action = fields(item.get("action"), f"{at}.action")
        value = {part: inner for part, inner in action.items() if part != "type" and inner not in (None, {})}
    elif kind == "apply_patch_call":
        name, value = "apply_patch", fields(item.get("operation"), f"{at}.operation")
    elif kind == "tool_search_call":
        asked = item.get("arguments") or {}
        name, value = "tool_search", asked if isinstance(asked, dict) else {"query": asked}
    else:
        return None
    return Called(_id(item, at), tools.name_of(name, None), _json(value))


def output_of(item: Json, at: str) -> tuple[str, Any] | None:
    """The call a result belongs to, and the result: text, or parts as the client wrote them. None: it is none."""
    match item.get("type"):
        case "function_call_output" | "custom_tool_call_output":
            return text(item.get("call_id"), f"{at}.call_id"), item.get("output")
        case "local_shell_call_output":
            return _id(item, at), text(item.get("output"), f"{at}.output")
        case "shell_call_output":
            given = item.get("output")
            if isinstance(given, str):
                return _id(item, at), given
            parts = enumerate(items(given, f"{at}.output"))
            return _id(item, at), "\n".join(_printed(fields(part, f"{at}.output.{n}")) for n, part in parts)
        case "apply_patch_call_output":
            output = item.get("output") or ""
            return _id(item, at), f"{item.get('status') or 'completed'}\n{output}" if output else str(
                item.get("status")
            )
        case "tool_search_output":
            return _id(item, at), f"Found: {', '.join(_names(item.get('tools'))) or 'nothing'}."
    return None


def _printed(part: Json) -> str:
    outcome = part.get("outcome")
    ended = ""
    if isinstance(outcome, dict):
        ended = "timed out" if outcome.get("type") == "timeout" else f"exit code {outcome.get('exit_code')}"
    return "\n".join(str(printed) for printed in (part.get("stdout"), part.get("stderr"), ended) if printed)


def _names(listed: Any) -> list[str]:
    names: list[str] = []
    for tool in listed if isinstance(listed, list) else ():
        if isinstance(tool, dict):
            names += (
                _names(tool["tools"])
                if tool.get("type") == "namespace" and "tools" in tool
                else [str(tool.get("name"))]
            )
    return names


def _id(item: Json, at: str) -> str:
    """Of older shells the result has the call's id as its own."""
    return text(item.get("call_id") or item.get("id"), f"{at}.call_id")


def _json(value: Any) -> str:
    return encoded(value).decode()


# what ran at OpenAI

_HOSTED = frozenset(
    {
        *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call"),
        *("computer_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call"),
        *("program", "program_output"),
    }
)
_SILENT = frozenset(
    {
        "id",
        "type",
        "status",
        "call_id",
        "result",
        "fingerprint",
        "encrypted_content",
        "acknowledged_safety_checks",
        "tools",
    }
)


def told(item: Json) -> str | None:
    """What ran at OpenAI, as a note in the assistant's words; None: it did not."""
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in _HOSTED:
        return None
    values = {name: value for name, value in item.items() if name not in _SILENT and value not in (None, "", [], {})}
    if isinstance(values.get("output"), dict):
        values.pop("output")  # a picture of a screen
    name = kind.removesuffix("_call").replace("_", " ")
    return f"[{name}: {_json(values)}]" if values else f"[{name}]"
