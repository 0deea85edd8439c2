"""The tools of a Responses request as functions of Chat.

An engine knows functions only. What a client runs itself becomes one: a custom tool a function with one text, tools of
a namespace functions whose names begin with the namespace's, the shells and ``apply_patch`` functions with a schema.
What runs at OpenAI is left out where there is something else to call. Shapes: OpenAI's Responses reference.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from services.gateway.core.json.fields import (
    Json,
    fields,
    items,
    left_out,
    missing,
    text,
    unmappable,
)

Sort = Literal["function", "custom", "local_shell", "shell", "apply_patch", "tool_search"]

MAX_CHARACTERS = 64
"""Of a function's name, at OpenAI and at most engines."""
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class Tool(msgspec.Struct, frozen=True):
    """A tool as the client knows it."""

    sort: Sort
    name: str
    namespace: str | None = None


class Tools:
    """The tools of one request. ``functions`` is what the engine is offered, by name."""

    def __init__(self) -> None:
        self.functions: dict[str, Json] = {}
        self._tools: dict[str, Tool] = {}
        self._spaces: dict[str, set[str]] = {}
        self._names: dict[tuple[str, str | None], str] = {}

    def add(self, tool: Tool, function: Json) -> None:
        """Of a tool that is there already, what was said last counts."""
        name = self.name_of(tool.name, tool.namespace)
        self._tools[name] = tool
        self._names[tool.name, tool.namespace] = name
        self.functions[name] = {"type": "function", "function": {"name": name, **function}}
        if tool.namespace is not None:
            self._spaces.setdefault(tool.namespace, set()).add(name)

    def name_of(self, name: str, namespace: str | None) -> str:
        """What the engine calls a tool, offered or not: the same name every time, and no other tool's."""
        if (known := self._names.get((name, namespace))) is not None:
            return known
        if namespace is None and name not in self._tools:
            return name
        whole = name if namespace is None else f"{namespace}__{name}"
        if len(whole) <= MAX_CHARACTERS and _UNFIT.search(whole) is None and whole not in self._tools:
            return whole
        mark = hashlib.sha256(f"{namespace}\0{name}".encode("utf-8", "replace")).hexdigest()[:8]
        return f"{_UNFIT.sub('_', whole)[: MAX_CHARACTERS - 9]}_{mark}"

    def called(self, name: str) -> Tool:
        """The tool behind a function that was called; a function the engine made up is one of no namespace."""
        return self._tools.get(name) or Tool("function", name)

    def only(self, names: set[str]) -> None:
        """Offer no others; calls of all are still known."""
        self.functions = {name: tool for name, tool in self.functions.items() if name in names}

    def in_namespace(self, namespace: str) -> set[str]:
        """The names, as the engine knows them, of the functions in a namespace; empty where none is offered in it."""
        return self._spaces.get(namespace, set())


def tools_of(body: Json, warnings: list[str]) -> Tools:
    """The tools a request offers, first and later. Raises Fault naming what cannot be offered here."""
    tools = Tools()
    hosted: list[tuple[str, str]] = []
    for listed, at in _lists(body):
        for n, tool in enumerate(items(listed, at)):
            kind = text(fields(tool, f"{at}.{n}").get("type"), f"{at}.{n}.type")
            if not _offered(tools, kind, tool, f"{at}.{n}", warnings):
                hosted.append((f"{at}.{n}", kind))
    for where, kind in hosted:
        if not tools.functions:
            raise unmappable(f"{where}.type", f"{kind!r} runs at OpenAI only; offer a function of your own")
        warnings.append(f"{where}: {kind!r} runs at OpenAI only and was left out")
    return tools


def _lists(body: Json) -> Iterator[tuple[Any, str]]:
    """Wherever tools stand: in the request, and in the conversation since it went on."""
    if body.get("tools"):
        yield body["tools"], "tools"
    given = body.get("input")
    for n, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, dict) and item.get("type") in ("additional_tools", "tool_search_output"):
            yield item.get("tools") or [], f"input.{n}.tools"


def _offered(tools: Tools, kind: str, tool: Json, at: str, warnings: list[str]) -> bool:
    """Whether the client runs it; then it is offered."""
    match kind:
        case "function" | "custom":
            _named(tools, kind, tool, at, warnings, None)
        case "namespace":
            namespace = text(tool.get("name"), f"{at}.name")
            left_out(tool, ("type", "name", "description", "tools"), at, warnings)
            for n, inner in enumerate(items(tool.get("tools"), f"{at}.tools")):
                inside = f"{at}.tools.{n}"
                sort = fields(inner, inside).get("type")
                if sort not in ("function", "custom"):
                    raise unmappable(f"{inside}.type", f"{sort!r} is neither function nor custom")
                _named(tools, sort, inner, inside, warnings, namespace)
        case "local_shell":
            tools.add(Tool("local_shell", "local_shell"), LOCAL_SHELL)
        case "shell" if fields(tool.get("environment") or {}, f"{at}.environment").get("type") in (None, "local"):
            tools.add(Tool("shell", "shell"), SHELL)
        case "apply_patch":
            tools.add(Tool("apply_patch", "apply_patch"), APPLY_PATCH)
        case "tool_search" if tool.get("execution") == "client":
            offered: Json = {"description": tool.get("description") or "Find tools by what they do."}
            tools.add(Tool("tool_search", "tool_search"), offered | {"parameters": tool.get("parameters") or _ANYTHING})
        case _:
            return False
    return True


def _named(tools: Tools, sort: Any, tool: Json, at: str, warnings: list[str], namespace: str | None) -> None:
    known = ("type", "name", "description", "parameters", "strict", "format")
    left_out(tool, known, at, warnings)
    name = text(tool.get("name"), f"{at}.name")
    if sort == "custom":
        function = _custom(tool, at)
    else:
        function = {part: tool[part] for part in ("description", "parameters", "strict") if tool.get(part) is not None}
    tools.add(Tool(sort, name, namespace), function)


def _custom(tool: Json, at: str) -> Json:
    """A function with one text. No engine can hold the text of an argument to a grammar, so the model is told of it."""
    description = [text(tool["description"], f"{at}.description")] if tool.get("description") else []
    form = fields(tool.get("format") or {"type": "text"}, f"{at}.format")
    if form.get("type") == "grammar":
        syntax = text(form.get("syntax"), f"{at}.format.syntax")
        description.append(
            f"The input must match this {syntax}:\n{text(form.get('definition'), f'{at}.format.definition')}"
        )
    elif form.get("type") != "text":
        raise unmappable(f"{at}.format.type", f"{form.get('type')!r} is neither text nor grammar")
    schema = _object({INPUT: {"type": "string", "description": "The whole input of the tool, as it is."}}, INPUT)
    return {**({"description": "\n\n".join(description)} if description else {}), "parameters": schema}


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


INPUT = "input"
"""The one argument of the function that stands for a custom tool."""
_ANYTHING: Json = {"type": "object", "properties": {}}
_TEXTS: Json = {"type": "array", "items": {"type": "string"}}
_TIMEOUT: Json = {"type": "integer", "description": "Milliseconds after which it is ended."}
LOCAL_SHELL: Json = {
    "description": "Run a command on the user's computer and read what it prints.",
    "parameters": _object(
        {
            "command": _TEXTS | {"description": "The program and its arguments, one by one."},
            "working_directory": {"type": "string"},
            "timeout_ms": _TIMEOUT,
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
            "user": {"type": "string"},
        },
        "command",
    ),
}
SHELL: Json = {
    "description": "Run shell commands on the user's computer and read what they print.",
    "parameters": _object(
        {
            "commands": _TEXTS | {"description": "Command lines, which may run at the same time."},
            "timeout_ms": _TIMEOUT,
            "max_output_length": {"type": "integer", "description": "Characters of output to read at most."},
        },
        "commands",
    ),
}
APPLY_PATCH: Json = {
    "description": "Create, change or delete one file.",
    "parameters": _object(
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": {"type": "string"},
            "diff": {
                "type": "string",
                "description": "For create_file every line of the file after a '+'. For update_file the changed lines "
                "after '-' and '+', with lines around them after a space; each place begins with a line '@@'.",
            },
        },
        "type",
        "path",
    ),
}


# which of them must be called


_CHOSEN_BY_TYPE = ("local_shell", "shell", "apply_patch", "tool_search")


def choose(tools: Tools, choice: Any, warnings: list[str]) -> Any:
    """``tool_choice`` of Chat, None where nothing needs to be said. Raises Fault."""
    if choice is None or isinstance(choice, str):
        if choice not in (None, "auto", "required", "none"):
            raise unmappable("tool_choice", f"{choice!r} is none of auto, required, none")
        return choice if choice != "auto" or tools.functions else None
    if fields(choice, "tool_choice").get("type") != "allowed_tools":
        chosen = _chosen(tools, choice, "tool_choice")
        if chosen is None:
            raise unmappable("tool_choice.type", f"{choice.get('type')!r} is not offered here; choose a function")
        (name,) = chosen
        return {"type": "function", "function": {"name": name}}
    allowed: set[str] = set()
    spaces: set[str] = set()
    for n, tool in enumerate(items(choice.get("tools"), "tool_choice.tools")):
        at = f"tool_choice.tools.{n}"
        if fields(tool, at).get("type") == "namespace":
            spaces.add(text(tool.get("name"), f"{at}.name"))
        elif (names := _chosen(tools, tool, at)) is not None:
            allowed |= names
        else:
            warnings.append(f"{at}: {tool.get('type')!r} is not offered here and was left out")
    for namespace in spaces:
        allowed |= tools.in_namespace(namespace)
    tools.only(allowed)
    if not tools.functions:
        raise unmappable("tool_choice.tools", "none of these tools is offered in 'tools'")
    mode = text(choice.get("mode") or "auto", "tool_choice.mode")
    if mode not in ("auto", "required"):
        raise unmappable("tool_choice.mode", f"{mode!r} is neither auto nor required")
    return mode


def _chosen(tools: Tools, choice: Json, at: str) -> set[str] | None:
    """The function a choice means; None: no tool of the client's."""
    kind = choice.get("type")
    if kind in ("function", "custom"):
        name, namespace = text(choice.get("name"), f"{at}.name"), choice.get("namespace")
        if namespace is not None:
            text(namespace, f"{at}.namespace")
        return {tools.name_of(name, namespace)}
    if kind is None:
        raise missing(f"{at}.type")
    return {tools.name_of(kind, None)} if kind in _CHOSEN_BY_TYPE else None
