"""Numbers on the command line, and what is said where something else stands."""

from __future__ import annotations

from typing import Any

import click


class Whole(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises BadParameter, saying which numbers may stand there."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{str(value)!r} is not a whole number {self.span}", param, ctx)

    @property
    def span(self) -> str:
        """Which numbers may stand there."""
        return f"from {self.min} up" if self.max is None else f"from {self.min} to {self.max}"


def below_zero(error: click.NoSuchOption) -> click.UsageError:
    """What to say of ``-1`` where a number was to stand, which the parser took for an option; else the same error."""
    numbers = [param for param in error.ctx.command.params if isinstance(param.type, Whole)] if error.ctx else []
    argument = next((param for param in numbers if isinstance(param, click.Argument)), None)
    if argument is None or not error.option_name[1:2].isdigit():
        return error
    assert isinstance(argument.type, Whole)
    words = f"a number below 0 stands there: write a whole number {argument.type.span}"
    return click.BadParameter(words, error.ctx, argument)
