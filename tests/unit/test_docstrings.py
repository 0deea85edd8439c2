"""A public function that lets an exception of ours out says so: ``Raises X``."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.unit.docstrings import Source, room_of

COMPLIANT = (
    *("libs/events", "libs/fit", "libs/runtime", "libs/testing", "libs/tuning"),
    "bench",
    *("services/accounting", "services/guard", "services/mirror"),
)
"""Rooms in which every such function says it."""


@pytest.mark.parametrize("room", COMPLIANT)
def test_what_is_raised_is_said(room: str, source: Source) -> None:
    public = [each for each in source.definitions.values() if each.public and room_of(each.module) == room]
    assert public, room
    silent = {each.name: source.unsaid(each) for each in public if source.unsaid(each)}
    assert not silent, "say `Raises X.` in the docstring: see python -m tests.unit.docstrings " + room


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


def test_exceptions_are_followed_through_calls(tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "example.py").write_text(
        textwrap.dedent('''
            from contextlib import contextmanager

            class Away(Exception): ...
            class Gone(Away): ...
            class Odd(Exception): ...

            def direct():
                raise Gone("it is not there")

            def through():
                """Raises Away."""
                direct()

            def held():
                try:
                    direct()
                except Away:
                    raise Odd from None

            @contextmanager
            def mapped():
                try:
                    yield
                except Odd:
                    raise ValueError from None

            def within():
                with mapped():
                    held()

            class Base:
                """Every method raises Odd."""

                def method(self):
                    held()

            class Derived(Base):
                def other(self):
                    self.method()
        ''')
    )
    source = Source(tmp_path)
    said = {name.removeprefix("libs.example."): source.unsaid(each) for name, each in source.definitions.items()}
    assert said == {
        "direct": ["Gone"],
        "through": [],
        "held": ["Odd"],
        "mapped": ["ValueError"],
        "within": [],
        "Base.method": [],
        "Derived.other": ["Odd"],
    }
