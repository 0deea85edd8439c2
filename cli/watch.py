"""``--watch``: a command's answer again and again, until Ctrl-C."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from cli.failure import Failed
from cli.times import written
from libs.events.times import rfc3339
from libs.runtime.terminal_text import visible

if TYPE_CHECKING:
    from cli.cluster import Cluster

EVERY_S = 2.0
HOME, END_OF_LINE, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

watch_option = click.option(
    "--watch",
    is_flag=True,
    help=f"Look again every {written(EVERY_S)} until Ctrl-C: redrawn on a terminal, else what changed is printed.",
)


async def watch(cluster: Cluster, look: Callable[..., Awaitable[None]], **arguments: Any) -> None:
    """Show what a command answers now, and go on doing so. Raises Failed when it cannot be answered the first time."""
    shown: list[str] | None = None
    show = draw if sys.stdout.isatty() and cluster.out.for_people else print_changes
    while True:
        lines: list[str] = []
        try:
            await look(replace(cluster, out=cluster.out.into(lines.append)), **arguments)
        except Failed as error:
            if shown is None:
                raise
            lines = [visible(f"llmgw: {error.message}")]
        lines = [line for text in lines for line in text.splitlines() or [""]]
        show(shown or [], lines)
        shown = lines
        await asyncio.sleep(EVERY_S)


def draw(before: Sequence[str], lines: Sequence[str]) -> None:
    """The whole answer, in place of what was drawn before it; what the terminal has no room for is counted."""
    size = shutil.get_terminal_size()
    head = f"{rfc3339(datetime.now(UTC))}, every {written(EVERY_S)}; Ctrl-C ends"
    room = size.lines - 2
    fitting = list(lines) if len(lines) <= room else [*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]
    start = HOME if before else HOME + BELOW
    rows = (f"{line[: size.columns - 1]}{END_OF_LINE}\n" for line in [head, *fitting])
    click.echo(start + "".join(rows) + BELOW, nl=False, color=True)
    sys.stdout.flush()


def print_changes(before: Sequence[str], lines: Sequence[str]) -> None:
    """The lines that were not there before, and of those that are there no more what they were about."""
    about = {_first_word(line) for line in lines}
    gone = [f"gone: {line}" for line in before if line.strip() and _first_word(line) not in about]
    known = set(before)
    for line in [*gone, *(line for line in lines if line not in known)]:
        click.echo(line)
    sys.stdout.flush()


def _first_word(line: str) -> str:
    return next(iter(line.split()), "")
