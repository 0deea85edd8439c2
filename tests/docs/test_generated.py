"""Generated pages say what the code says, and leave nothing out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from services.gateway.core.error_codes import ERROR_CODES

from .errors_page import faults
from .metrics_page import metrics, registered
from .pages import DOCS, GENERATED, ROOT
from .settings_page import described, service_settings

KINDS = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == GENERATED[name](), "run `make docs`"


def test_every_code_of_a_fault_has_a_meaning_and_every_meaning_a_fault() -> None:
    made = {code: place for code, _, place in faults()}

    assert {code: place for code, place in made.items() if code not in ERROR_CODES} == {}, "add to core/error_codes.py"
    assert sorted(ERROR_CODES.keys() - made.keys()) == []


def _made_in(file: Path) -> set[str]:
    """Names of the metrics a module makes."""
    return {
        call.args[0].value.removesuffix("_total")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in KINDS
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def test_no_metric_is_missing() -> None:
    made = set().union(*(_made_in(file) for part in ("libs", "services") for file in (ROOT / part).rglob("*.py")))

    assert made - metrics().keys() == set()
    assert registered() - metrics().keys() == set()


def test_every_setting_has_a_meaning() -> None:
    assert [
        f"{service}.{one.name}"
        for service, kind in service_settings().items()
        for one in described(service, kind)
        if not one.meaning
    ] == []
