"""``docs/errors.md``: every code the gateway can answer, with the statuses faults are made with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import services.gateway
from services.gateway.core.error_codes import ERROR_CODES
from services.gateway.core.protocols.anthropic_messages.errors import error_type

from .table import cell, table

HEAD = """# Error codes

What the gateway answers when it does not answer a request. This page is generated from the gateway's faults by
`make docs`; a test fails when a code is missing.

In OpenAI's form: `{"error": {"message", "type", "param", "code"}}`. Under `/v1/messages` in Anthropic's, which has no
code: `{"type": "error", "error": {"type", "message"}, "request_id"}`; its `type` follows the status. The message says
what is wrong in this case; `param`, where there is one, names the field. `x-request-id` is the request's id in the
ledger, in logs and in `llmgw event tail`.

What an engine says about a request it refuses is passed on with the engine's own code, or with none. A body that is
wrong in a way no code is for has none either; the message says how.
"""
GATEWAY = Path(services.gateway.__path__[0])


def _function_of(tree: ast.Module) -> dict[ast.AST, ast.FunctionDef | ast.AsyncFunctionDef]:
    inside: dict[ast.AST, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(dict.fromkeys(ast.walk(node), node))
    return inside


def _texts(node: ast.AST | None) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)] if node else []


def _makes_a_fault(function: ast.expr) -> bool:
    """``Fault(…)``, or ``super().__init__(…)`` of one."""
    match function:
        case ast.Name(id="Fault"):
            return True
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
            return True
    return False


def faults() -> Iterator[tuple[str, int, str]]:
    """Code, status and place of every fault that is made with a code of ours.

    A fault whose code is a parameter has the values of its ``Literal``; a function that passes a code on (``bad_body``)
    has those it is called with.
    """
    for file in sorted(GATEWAY.rglob("*.py")):
        tree = ast.parse(file.read_text())
        inside = _function_of(tree)
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            place = f"{file.relative_to(GATEWAY)}:{call.lineno}"
            for keyword in call.keywords:
                if keyword.arg == "code":
                    yield from ((code, 400, place) for code in _texts(keyword.value))
            if not _makes_a_fault(call.func) or len(call.args) < 2:
                continue
            status, code = call.args[:2]
            if not isinstance(status, ast.Constant) or not isinstance(status.value, int):
                continue
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                yield code.value, status.value, place
            elif isinstance(code, ast.Name):
                arguments = inside[call].args
                for argument in (*arguments.args, *arguments.kwonlyargs):
                    if argument.arg == code.id:
                        yield from ((text, status.value, place) for text in _texts(argument.annotation))


def page() -> str:
    """The whole page."""
    statuses: dict[str, set[int]] = {}
    for code, status, _ in faults():
        statuses.setdefault(code, set()).add(status)
    rows = []
    for code in sorted(statuses, key=lambda code: (min(statuses[code]), code)):
        meaning = ERROR_CODES[code]
        rows.append(
            (
                ", ".join(map(str, sorted(statuses[code]))),
                f"`{code}`",
                cell(meaning.when),
                cell(meaning.what_to_do),
            )
        )
    anthropic = [(str(status), f"`{error_type(status)}`") for status in sorted(set().union(*statuses.values()))]
    lines = [HEAD, *table(("status", "code", "when", "what to do"), rows)]
    lines += ["## Types under `/v1/messages`", "", *table(("status", "type"), anthropic)]
    return "\n".join(lines).rstrip() + "\n"
