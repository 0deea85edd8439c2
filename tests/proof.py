"""The table a test run ends with: figures that tests measured, and what of the long ones was proved.

A test says a figure with pytest's own ``record_property("verdict p50", "0.8 ms")``.
"""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: list[tuple[str, str, str]] = []
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            if report.when != "call" and outcome == "passed":
                continue
            figures = "; ".join(f"{name}: {value}" for name, value in report.user_properties)
            if figures or "slow" in report.keywords:
                rows.append((report.nodeid.removeprefix("tests/"), outcome, figures))
    if not rows:
        return
    terminalreporter.section("what was proved, and the figures")
    width = max(len(name) for name, _, _ in rows)
    for name, outcome, figures in sorted(rows):
        terminalreporter.write_line(f"{name:<{width}}  {outcome:<7}  {figures}".rstrip())
