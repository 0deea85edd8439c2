"""What ``up`` shows: its own words and the ends of its parts' logs, each line with the name of its part."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import click

from libs.events.times import rfc3339
from libs.runtime.logs import blank
from libs.runtime.terminal_text import in_one_line

FOLLOW_S = 0.1
LARGEST_LOG_BYTES = 64 * 1024 * 1024
"""A log file beyond this is moved aside (one older is kept): nobody watches the disk of a demo."""
LINE_BYTES = 2000
COLOURS = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_yellow")
NATS_INFORMATION = re.compile(r"\[\d+\] \S+ \S+ \[INF\]")
LEVELS = ("warning", "error", "critical")


@dataclass
class Tail:
    """How far one log file has been shown."""

    file: Path
    offset: int
    rest: bytes = b""


def blanked(log: Path) -> None:
    """Blank the keys that earlier versions wrote into a log, where it stands: who appends to it goes on."""
    try:
        text = log.read_text(errors="surrogateescape")
        clean = blank(text) if "sk-llmgw-" in text else text
        if clean != text:
            with log.open("r+", errors="surrogateescape") as file:
                file.write(clean)
                file.truncate()
    except OSError:
        return  # there is none, or it cannot be written: it is nobody's reason not to start


@dataclass
class Console:
    """Standard output of ``up``. Nobody reading it any more is no reason to stop."""

    own_log: Path
    """Where standard output goes when ``up`` runs in the background."""
    tails: dict[str, Tail] = field(default_factory=dict)
    width: int = 10

    def say(self, part: str, line: str) -> None:
        """One line of a part."""
        self.width = max(self.width, len(part))
        colour = COLOURS[sum(part.encode()) % len(COLOURS)]
        self.plain(f"{click.style(part.ljust(self.width), fg=colour)} | {in_one_line(blank(line[:LINE_BYTES]))}")

    def plain(self, line: str) -> None:
        """A line to copy from: nothing stands before it."""
        with contextlib.suppress(OSError):
            click.echo(line)
            sys.stdout.flush()

    def follow(self, part: str, file: Path) -> None:
        """Show what is written to a log file from now on."""
        self.tails[part] = Tail(file, file.stat().st_size if file.exists() else 0)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self.show()
            await asyncio.sleep(FOLLOW_S)

    def show(self) -> None:
        """Show what was written since the last time."""
        for part, tail in self.tails.items():
            for line in _new_lines(tail):
                words = readable(line)
                if words:
                    self.say(part, words)
        with contextlib.suppress(OSError):
            if self.own_log.exists() and self.own_log.stat().st_size > LARGEST_LOG_BYTES:
                _cut(self.own_log)


def _new_lines(tail: Tail) -> list[str]:
    try:
        size = tail.file.stat().st_size
        if size < tail.offset:
            tail.offset, tail.rest = 0, b""
        if size == tail.offset:
            return []
        with tail.file.open("rb") as file:
            file.seek(tail.offset)
            text = tail.rest + file.read(1024 * 1024)
            tail.offset = file.tell()
        if tail.offset > LARGEST_LOG_BYTES:
            _cut(tail.file)
            tail.offset = 0
    except OSError:
        return []
    *lines, tail.rest = text.split(b"\n")
    return [line.decode(errors="replace") for line in lines if line.strip()]


def _cut(file: Path) -> None:
    """Copy a log aside and empty it. Its writers append: they need not open it again."""
    shutil.copyfile(file, file.with_suffix(".log.1"))
    with file.open("r+b") as log:
        log.truncate(0)


def readable(line: str) -> str:
    """A JSON log line in few words, nothing of what nats-server says only for information; other lines as they are."""
    if NATS_INFORMATION.match(line):
        return ""
    if not line.startswith("{"):
        return line
    try:
        entry = json.loads(line)
        time = datetime.fromisoformat(entry.pop("time"))
        level, message = entry.pop("level"), entry.pop("message")
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    error = entry.pop("error", "")
    for known in ("service", "instance", "logger", "trace_id"):
        entry.pop(known, None)
    extra = "".join(f" {name}={value}" for name, value in entry.items())
    words = f"{rfc3339(time)} {f'{level}: ' if level in LEVELS else ''}{message}{extra}"
    return f"{words} ({error.strip().splitlines()[-1]})" if error else words
