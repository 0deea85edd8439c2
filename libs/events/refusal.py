"""How a pure core says no."""

from __future__ import annotations

from collections.abc import Iterable

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
