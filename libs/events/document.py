"""Writes ``docs/events.md`` from the contracts: ``python -m libs.events.document > docs/events.md``."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from . import contracts, pattern_of, tag_of, views
from .contract import Contract, Value

PLANES = {
    "evt": ("Events", "What happened and changed state. Stream `EVENTS`, kept for ever."),
    "use": (
        "Usage facts",
        "Many facts a message. Stream `USAGE`, kept until the ledger has them, and on while there is room.",
    ),
    "cmd": ("Commands", "Wishes, to the one service that owns the matter. Stream `COMMANDS`, kept for an hour."),
    "ask": ("Questions", "Asked of a running service and answered at once (`nats micro ls`). Nothing is stored."),
    "chk": ("Checks", "Text to judge. Stream `CHECKS`: in memory only, a minute at most. Prompts stand nowhere else."),
    "tel": ("Telemetry", "Measurements. Stream `TELEMETRY`: in memory, the last few of each subject."),
}
HEAD = """# Events

Everything the services say to each other. This page is generated from `libs/events` by `make docs`; a test
fails when it is out of date.

A message is one line of JSON whose first field, `type`, is its tag; the header `Llmgw-Type` repeats it.
Fields that have a default are left out when they have it. Times are RFC 3339 in UTC, units stand in the names.
Headers: `Nats-Msg-Id`, `Llmgw-Type`, `Llmgw-Actor` (who), `Llmgw-Cause` (the command or message it followed
from), `traceparent`. The operator publishes a command on its subject, a gateway on that with `.gateway` behind it, as
the server lets each: a gateway's word on who the actor is is believed, and nobody else's.

Read along with `llmgw event tail`, or with the NATS command line: `nats sub 'llmgw.evt.>'`.
"""


def type_name(hint: Any) -> str:
    """A type as a reader of JSON would say it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is type(None):
        return "null"
    if origin is Literal:
        return " or ".join(f"`{a}`" for a in arguments)
    if origin in (Union, UnionType):
        return " or ".join(type_name(a) for a in arguments if a is not type(None))
    if origin is tuple:
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"map of {type_name(arguments[0])} to {type_name(arguments[1])}"
    return {"str": "text", "int": "integer", "float": "number", "bool": "boolean", "datetime": "time"}.get(
        hint.__name__, f"[{hint.__name__}](#{hint.__name__.lower()})"
    )


def values_in(hint: Any) -> Iterator[type[Value]]:
    """The value types a type is made of."""
    for argument in get_args(hint):
        yield from values_in(argument)
    if isinstance(hint, type) and issubclass(hint, Value) and not issubclass(hint, Contract):
        yield hint
        for inner in get_type_hints(hint).values():
            yield from values_in(inner)


def field_notes(contract: type[msgspec.Struct]) -> dict[str, str]:
    """The string below each field, as documentation: from the class and what it inherits from."""
    notes: dict[str, str] = {}
    for cls in reversed(contract.__mro__):
        if not issubclass(cls, msgspec.Struct) or cls in (Value, msgspec.Struct):
            continue
        body = ast.parse(inspect.getsource(cls)).body[0]
        assert isinstance(body, ast.ClassDef)
        name = ""
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
                notes[name] = " ".join(str(node.value.value).split())
                name = ""
    return notes


def default_text(field: msgspec.structs.FieldInfo) -> str:
    """A field's default as Markdown; empty where the field is required."""
    if field.required:
        return ""
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value in (None, (), {}, ""):
        return "absent"
    return f"`{msgspec.json.encode(value).decode()}`"


def fields_table(contract: type[Value]) -> list[str]:
    """The fields of a contract as lines of a Markdown table and an empty one; no lines where there are no fields."""
    fields = msgspec.structs.fields(contract)
    if not fields:
        return []
    hints, notes = get_type_hints(contract), field_notes(contract)
    rows = ["| field | is | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{f.encode_name}` | {type_name(hints[f.name])} | {default_text(f)} | {notes.get(f.name, '')} |"
        for f in fields
    ]
    return [*rows, ""]


def page() -> str:
    """The whole page, as Markdown."""
    lines = [HEAD]
    used: dict[str, type[Value]] = {}
    for plane, (title, meaning) in PLANES.items():
        lines += [f"## {title}", "", meaning, ""]
        for contract in contracts():
            if contract.plane != plane:
                continue
            lines += [f"### {tag_of(contract)}", "", f"`{pattern_of(contract)}`", ""]
            if contract.__doc__:
                lines += [inspect.cleandoc(contract.__doc__), ""]
            lines += fields_table(contract)
            for hint in get_type_hints(contract).values():
                used.update({value.__name__: value for value in values_in(hint)})
    lines += [
        "## Views",
        "",
        "Key-value buckets (`nats kv ls`): derived from the log, each written by one service.",
        "",
    ]
    buckets = [v for v in vars(views).values() if isinstance(v, type) and issubclass(v, Value) and v is not Value]
    for value in buckets:
        for hint in get_type_hints(value).values():
            used.update({inner.__name__: inner for inner in values_in(hint)})
        used[value.__name__] = value
    for value in sorted(buckets, key=lambda v: v.__name__):
        if (value.__doc__ or "").startswith("Bucket"):
            used.pop(value.__name__, None)
            lines += [f"### {value.__name__}", "", inspect.cleandoc(value.__doc__ or ""), "", *fields_table(value)]
    lines += ["## Parts", "", "What messages and views are made of.", ""]
    for name in sorted(used):
        lines += [f"### {name}", ""]
        document = used[name].__doc__
        if document:
            lines += [inspect.cleandoc(document), ""]
        lines += fields_table(used[name])
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
