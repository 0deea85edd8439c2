"""Lines for people: beside a command's Output the one way out."""

from __future__ import annotations

import click

from libs.runtime.terminal_text import visible


def say(text: str, *, err: bool = False) -> None:
    """A line of text to standard output, or to standard error. No control character in it goes out raw."""
    click.echo(visible(text), err=err)
