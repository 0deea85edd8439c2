"""How a pure core says no."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Collection, Iterable

from .commands import Problem


class Refused(Exception):
    """A command or question is refused, with every problem it has at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in self.problems))

    @classmethod
    def one(cls, path: str, message: str) -> Refused:
        """Refused for one reason."""
        return cls([Problem(path=path, message=message)])


FEW = 1000
"""Names among which one is looked for that was probably meant: comparing with more holds up everybody else."""
SHOWN = 5


def instead_of(name: str, names: Collection[str]) -> str:
    """What to say to somebody who gave a name that is not among ``names``: the one that was probably meant, or what
    there is. ``is 'acme' meant?``"""
    if not names:
        return "none is defined yet"
    if len(names) > FEW:
        return f"there are {len(names):,}"
    if near := difflib.get_close_matches(name, names, n=1):
        return f"is {near[0]!r} meant?"
    return f"there is {some(names)}"


def some(names: Collection[str]) -> str:
    """The first few of many names: ``a, b, …``."""
    return ", ".join(heapq.nsmallest(SHOWN, names)) + (", …" if len(names) > SHOWN else "")
