"""What commands print: text for people, or JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

import click
import msgspec

from libs.events.times import rfc3339
from libs.runtime.terminal_text import in_json, in_one_line, visible

Write = Callable[[str], None]


class Output(Protocol):
    """Where a command's result goes."""

    for_people: bool

    def rows(self, rows: Sequence[Any], columns: Sequence[tuple[str, str]], empty: str) -> None:
        """Many of the same; ``columns`` are (heading, field). ``empty`` is said to a person when there are none."""
        ...

    def result(self, value: Any, text: Iterable[str]) -> None:
        """One result: the value for programs, the lines for people."""
        ...

    def event(self, value: Any, text: str) -> None:
        """One of a stream of results, at once."""
        ...

    def into(self, write: Write) -> Output:
        """The same, written elsewhere: each text once it is whole."""
        ...


class Json:
    """JSON, every field present; over several lines, unless ``indent`` is 0."""

    for_people = False

    def __init__(self, write: Write = click.echo, indent: int = 2) -> None:
        self._write = write
        self._indent = indent

    def rows(self, rows: Sequence[Any], columns: Sequence[tuple[str, str]], empty: str) -> None:
        self.result([plain(row) for row in rows], ())

    def result(self, value: Any, text: Iterable[str]) -> None:
        encoded = msgspec.json.encode(plain(value))
        self._write(in_json((msgspec.json.format(encoded, indent=self._indent) if self._indent else encoded).decode()))

    def event(self, value: Any, text: str) -> None:
        self._write(in_json(msgspec.json.encode(plain(value)).decode()))
        sys.stdout.flush()

    def into(self, write: Write) -> Json:
        return Json(write, indent=0)


class Text:
    """Aligned columns and sentences. No control character in them goes out raw."""

    for_people = True

    def __init__(self, write: Write = click.echo) -> None:
        self._write = write

    def rows(self, rows: Sequence[Any], columns: Sequence[tuple[str, str]], empty: str) -> None:
        if not rows:
            self._write(visible(empty))
            return
        cells = [[heading for heading, _ in columns]]
        cells += [[in_one_line(cell(value_of(row, field))) for _, field in columns] for row in rows]
        widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
        for line in cells:
            self._write("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())

    def result(self, value: Any, text: Iterable[str]) -> None:
        for line in text:
            self._write(visible(line))

    def event(self, value: Any, text: str) -> None:
        self._write(visible(text))
        sys.stdout.flush()

    def into(self, write: Write) -> Text:
        return Text(write)


class Quiet:
    """Prints nothing: for whoever uses a command's work and not its words."""

    for_people = True

    def rows(self, rows: Sequence[Any], columns: Sequence[tuple[str, str]], empty: str) -> None: ...

    def result(self, value: Any, text: Iterable[str]) -> None: ...

    def event(self, value: Any, text: str) -> None: ...

    def into(self, write: Write) -> Quiet:
        return self


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--json``: the command gets its Output as ``out``."""
    return click.option(
        "--json",
        "out",
        is_flag=True,
        callback=lambda ctx, option, given: Json() if given else Text(),
        help="Print JSON.",
    )(function)


def plain(value: Any) -> Any:
    """Structs as mappings with every field, defaults included."""
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        tag = value.__struct_config__.tag
        return {"type": tag, **fields} if tag else fields
    if isinstance(value, dict):
        return {key: plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    return value


def value_of(row: Any, field: str) -> Any:
    """A field by its dotted name."""
    for name in field.split("."):
        row = row.get(name) if isinstance(row, dict) else getattr(row, name)
    return row


def cell(value: Any) -> str:
    """A value in a column."""
    if value is None or value == () or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={element}" for key, element in value.items())
    return str(value)
