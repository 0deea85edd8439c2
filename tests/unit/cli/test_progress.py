from __future__ import annotations

import io
import sys

import pytest

from cli.progress import ProgressLine, size, words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (999, "999 B"), (4_100_000_000, "4.1 GB"), (2.5e12, "2.5 TB"), (9e15, "9000.0 TB")]
)
def test_sizes_are_said_for_people(count: float, said: str) -> None:
    assert size(count) == said


def test_bytes_rate_and_time_left_are_said() -> None:
    assert words(1_200_000_000, 4_000_000_000, 20e6) == "1.2 GB of 4.0 GB (30 %), 20.0 MB/s, 2 min 20 s left"
    assert words(0, 10, 0) == "0 B of 10 B (0 %), 0 B/s"
    assert words(1_200_000_000, 4_000_000_000) == "1.2 GB of 4.0 GB (30 %)"
    assert words(10, 0, 5) == "10 B of 0 B, 5 B/s, 0 s left"


def test_a_terminal_has_one_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    line = ProgressLine("m")
    line.show(1, 100, 1)
    line.show(100, 100, 50)
    line.end()
    assert "\n" not in screen.getvalue()
    assert "(100 %)" in screen.getvalue()
    assert screen.getvalue().endswith("\r")


def test_elsewhere_lines_are_whole_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    line = ProgressLine("m")
    for done in range(100):
        line.show(done, 100, 1)
    line.end()
    assert pipe.getvalue() == "m: 0 B of 100 B (0 %), 1 B/s, 1 min 40 s left\n"
