"""Asking before something is destroyed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from cli.failure import Failed

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(deed: str) -> None:
    """Ask whoever sits at the terminal whether to do it. ``deed``: ``remove model x``. Raises Failed when it is not
    wanted, or nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise Failed(f"nothing was done: there is no terminal to ask at whether to {deed}; add --yes to do it unasked")
    if not click.confirm(f"{deed[0].upper()}{deed[1:]}?", err=True):
        raise Failed("nothing was done: it was not confirmed")


def destroys(deed: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a command that is confirmed, or given ``--yes``, before it does anything.

    ``deed``: what it does, with its arguments' names in braces: ``remove model {name}``.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @yes_option
        @functools.wraps(function)
        def command(yes: bool, **arguments: Any) -> Any:
            if not yes:
                confirm(deed.format(**arguments))
            return function(**arguments)

        return command

    return decorate
