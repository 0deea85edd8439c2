"""The tables of ``docs/engines.md`` have every engine of the table, in its order."""

from __future__ import annotations

from pathlib import Path

from libs.engines import ENGINES

LINES = (Path(__file__).parents[2] / "docs" / "engines.md").read_text().splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_engine_has_a_row() -> None:
    begin = LINES.index("| Engine | Found by | Runs |") + 2
    rows = [cells(line)[0] for line in LINES[begin : LINES.index("", begin)]]
    assert rows == [f"`{name}`" for name in ENGINES]


def test_every_engine_that_computes_has_a_column_with_the_version_that_was_checked() -> None:
    (head,) = (cells(line)[1:] for line in LINES if line.startswith("| | "))
    real = [engine for engine in ENGINES.values() if not engine.simulated]
    assert len(head) == len(real)
    for column, engine in zip(head, real, strict=True):
        assert column.startswith(engine.called)
        assert (engine.arguments.version or "") in column
