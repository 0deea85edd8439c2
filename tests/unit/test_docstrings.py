"""Every public function has a docstring, and says ``Raises X`` where it lets an exception of ours out."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.unit.docstrings import Source, room_of

ROOMS = sorted({room_of(each.module) for each in Source().definitions.values()})
UNDESCRIBED = "services.nodeagent.simulation.nvml"
"""Its functions are those of NVML, and NVIDIA's manual describes them."""


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_raised_is_said(room: str, source: Source) -> None:
    public = [each for each in source.definitions.values() if each.public and room_of(each.module) == room]
    silent = {each.name: source.unsaid(each) for each in public if source.unsaid(each)}
    assert not silent, "say `Raises X.` in the docstring: see python -m tests.unit.docstrings " + room


@pytest.mark.parametrize("room", ROOMS)
def test_public_functions_have_docstrings(room: str, source: Source) -> None:
    public = [each for each in source.definitions.values() if each.public and room_of(each.module) == room]
    bare = [each.name for each in public if source.bare(each) and each.module != UNDESCRIBED]
    assert not bare


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


def test_exceptions_are_followed_through_calls(tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "example.py").write_text(
        textwrap.dedent('''
            from contextlib import contextmanager
            from typing import Protocol

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

            class Fetches(Protocol):
                def fetch(self):
                    """Raises Odd."""
                def close(self):
                    """Fetch no more."""

            class Fetcher:
                def fetch(self):
                    held()
                def close(self): ...

            class Mapper:
                def __init__(self, mapping: Mapping):
                    self._mapping = mapping

                def run(self):
                    with self._mapping.mapped():
                        held()

            class Mapping:
                @contextmanager
                def mapped(self):
                    try:
                        yield
                    except Odd:
                        raise ValueError from None

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
        "Fetches.fetch": [],
        "Fetches.close": [],
        "Fetcher.fetch": [],
        "Fetcher.close": [],
        "Mapper.__init__": [],
        "Mapper.run": [],
        "Mapping.mapped": ["ValueError"],
        "Base.method": [],
        "Derived.other": ["Odd"],
    }
