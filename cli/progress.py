"""How far long work is: one line that changes on a terminal, plain lines now and then elsewhere. On stderr."""

from __future__ import annotations

import sys
import time

import click

from libs.runtime.terminal_text import in_one_line

LINE_EVERY_S = 5.0
"""Where lines stay: in a file, a pipe, a build's log."""


class ProgressLine:
    """Bytes, rate and time left of one thing."""

    def __init__(self, what: str) -> None:
        self._what = in_one_line(what)
        self._terminal = sys.stderr.isatty()
        self._width = 0
        self._next = 0.0

    def show(self, done_bytes: int, total_bytes: int, bytes_per_s: float) -> None:
        """Say how far it is, unless that was said a moment ago."""
        line = f"{self._what}: {words(done_bytes, total_bytes, bytes_per_s)}"
        if self._terminal:
            click.echo("\r" + line.ljust(self._width), err=True, nl=False)
            self._width = len(line)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            click.echo(line, err=True)

    def end(self) -> None:
        """Make room for what is printed next."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)
            self._width = 0


def words(done_bytes: int, total_bytes: int, bytes_per_s: float | None = None) -> str:
    """``1.2 GB of 4.0 GB (30 %), 210.0 MB/s, 13 s left``; without a rate, where none was measured, the first of it."""
    share = f" ({100 * done_bytes // total_bytes} %)" if total_bytes else ""
    text = f"{size(done_bytes)} of {size(total_bytes)}{share}"
    if bytes_per_s is None:
        return text
    text += f", {size(bytes_per_s)}/s"
    if not bytes_per_s:
        return text
    seconds = round(max(0, total_bytes - done_bytes) / bytes_per_s)
    minutes, seconds = divmod(seconds, 60)
    return f"{text}, {f'{minutes} min ' if minutes else ''}{seconds} s left"


def size(count: float) -> str:
    """Bytes for people: ``4.1 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
