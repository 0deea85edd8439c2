"""No task of a service that lives on by itself dies unseen, or outlives the service."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKERS = ("create_task", "ensure_future")


def unseen(source: str) -> list[int]:
    """Lines that keep a bare task beyond the function that made it, or nowhere: nobody there asks how it ended."""
    found = []
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            lives_on = any(_of_self(target) for target in targets)
        else:
            lives_on = isinstance(statement, ast.Expr)
        if lives_on and statement.value is not None:  # type: ignore[attr-defined]
            found += [node.lineno for node in ast.walk(statement) if _makes(node)]
    return found


def _of_self(target: ast.expr) -> bool:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return isinstance(target, ast.Name) and target.id == "self"


def _makes(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS


def cancelled_once(source: str) -> list[int]:
    """Lines that cancel a supervised task, or each of several, themselves: it talks over the bus, and a cancellation
    may be lost there."""
    tree = ast.parse(source)
    supervised = {
        target.attr
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign) and any(_supervises(node) for node in ast.walk(statement.value))
        for target in statement.targets
        if isinstance(target, ast.Attribute)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.Expr)
        and any(isinstance(part, ast.Attribute) and part.attr in supervised for part in ast.walk(node))
        and any(isinstance(part, ast.Attribute) and part.attr == "cancel" for part in ast.walk(node))
    ]


def _supervises(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "background"


SERVICES = sorted((ROOT / "services").rglob("*.py"))


@pytest.mark.parametrize("file", SERVICES, ids=lambda f: str(f.relative_to(ROOT)))
def test_supervised_tasks_are_ended_for_certain(file: Path) -> None:
    lines = cancelled_once(file.read_text())
    assert lines == [], f"{file}, lines {lines}: end it with libs.tasks.end"


@pytest.mark.parametrize("file", SERVICES, ids=lambda f: str(f.relative_to(ROOT)))
def test_tasks_that_live_on_are_supervised(file: Path) -> None:
    lines = unseen(file.read_text())
    assert lines == [], f"{file}, lines {lines}: begin it with Bus.background or libs.bus.supervise"


def test_what_is_looked_for_is_found() -> None:
    assert unseen("self._task = asyncio.create_task(run())") == [1]
    assert unseen("self._tasks[name] = loop.create_task(run())") == [1]
    assert unseen("self._tasks = [\n asyncio.ensure_future(one) for one in some]") == [2]
    assert unseen("asyncio.create_task(run())") == [1]
    assert unseen("task = asyncio.create_task(run())\nawait task") == []
    assert unseen("self._task = bus.background('x', run)") == []
    begun = "self._task = bus.background('x', run)"
    assert cancelled_once(f"{begun}\nself._task.cancel()") == [2]
    assert cancelled_once("self._tasks = [bus.background('x', run)]\nfor task in self._tasks:\n task.cancel()") == [2]
    assert cancelled_once(f"{begun}\nawait end(self._task)\nself._other.cancel()") == []
