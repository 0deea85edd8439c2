"""Times are written for people in one way: ``libs/events/times.py`` does it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "libs/events/times.py",
    "libs/runtime/logs.py",  # lines of a terminal: the time of day where it stands
}


def written_otherwise(source: str) -> list[int]:
    """Lines that lay a time of day out themselves: by ``strftime`` or in an f-string."""
    found = []
    for node in ast.walk(ast.parse(source)):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "strftime"
        laid_out = isinstance(node, ast.FormattedValue) and any(
            isinstance(part, ast.Constant) and "%H" in str(part.value)
            for part in ast.walk(node.format_spec or ast.Constant(""))
        )
        if called or laid_out:
            found.append(node.lineno)  # type: ignore[attr-defined]
    return found


def test_services_and_commands_write_times_in_one_way() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for package in ("libs", "services", "cli")
        for path in sorted((ROOT / package).rglob("*.py"))
        if (lines := written_otherwise(path.read_text()))
    }
    assert set(found) == ELSEWHERE, "use rfc3339 of libs/events/times.py"


def test_both_ways_are_found() -> None:
    assert written_otherwise('at.strftime("%H:%M")') == [1]
    assert written_otherwise('f"at {at:%H:%M:%S} UTC"') == [1]
    assert written_otherwise('f"{part:.0%} of {month:%Y-%m}"') == []
