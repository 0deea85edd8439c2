"""Finds the commands that the manual tells a reader to run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .pages import ROOT

FENCE = re.compile(r"^ *```(?P<kind>\w*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(?P<text>(?:llmgw|make|python -m|docker compose|systemctl) [^`]+)`(?!`)")
SHELL = {"sh", "bash"}
NAMED = re.compile(r"^# (?P<name>[\w.-]+\.yaml)$")


class Command(NamedTuple):
    """A command as it stands in a page."""

    page: str
    """Below the repository's root."""
    line: int
    text: str
    block: bool
    """It stands in a block of its own, to be pasted; else in a sentence."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class File(NamedTuple):
    """A file a page shows, which its commands use."""

    name: str
    text: str


def _lines(body: str, first: int) -> Iterator[tuple[int, str]]:
    """The lines of a shell block, those that go on in the next one joined."""
    held, began = "", first
    for number, line in enumerate(body.splitlines(), first):
        held, began = (f"{held}\n{line}", began) if held else (line, number)
        if held.endswith("\\") or held.count("'") % 2:
            continue
        if held.strip() and not held.lstrip().startswith("#"):
            yield began, held.strip()
        held = ""


def _in_block(kind: str, body: str, first: int) -> Iterator[tuple[int, str]]:
    if kind in SHELL:
        yield from _lines(body, first)
    elif not kind:
        # A session: commands behind a prompt, and what they print. Or commands alone, in columns with what they do.
        for number, line in enumerate(body.splitlines(), first):
            if line.startswith(("$ ", "llmgw ")):
                yield number, line.removeprefix("$ ")


def read(page: Path) -> Iterator[Command | File]:
    """What a page tells to run, and the files it shows, in its order."""
    text, name = page.read_text(), str(page.relative_to(ROOT))
    found: list[tuple[int, Command | File]] = []

    def line_of(at: int) -> int:
        return text.count("\n", 0, at) + 1

    for fence in FENCE.finditer(text):
        body = fence["body"]
        shown = NAMED.match(body.partition("\n")[0]) if fence["kind"] == "yaml" else None
        if shown:
            found.append((fence.start(), File(shown["name"], body)))
        for line, command in _in_block(fence["kind"], body, line_of(fence.start("body"))):
            found.append((fence.start(), Command(name, line, command, block=True)))
    outside = FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)
    for span in SPAN.finditer(outside):
        found.append((span.start(), Command(name, line_of(span.start()), " ".join(span["text"].split()), block=False)))
    yield from (one for _, one in sorted(found, key=lambda pair: pair[0]))


def comments(file: Path) -> Iterator[Command]:
    """Commands in the comments of a file that is no page."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        told = re.match(r"# +(?P<text>(?:llmgw|docker compose|docker build) .*?)(?:  +\S.*)?$", line)
        if told:
            yield Command(str(file.relative_to(ROOT)), number, told["text"], block=True)
