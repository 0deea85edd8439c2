"""Where a model's weights come from, as its definition says it: ``library:NAME[@VERSION]``, kept by the mirrors, or
``file:/PATH``, a GGUF file or a model's folder that is on the machines already (a shared filesystem, say)."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

LIBRARY = re.compile(r"^library:[a-z0-9][a-z0-9._-]{0,62}(@[A-Za-z0-9][A-Za-z0-9._-]{0,62})?$")

FILE = "file:"

FORMS = "library:NAME, library:NAME@VERSION or file:/PATH"


def of_library(source: str) -> bool:
    """Whether the library has it; else each machine finds it by itself."""
    return not source.startswith(FILE)


def path_of(source: str) -> PurePosixPath:
    """The path of a ``file:`` source."""
    return PurePosixPath(source.removeprefix(FILE))


def source_problem(source: str) -> str | None:
    """What is wrong with a source by its form, or None."""
    if not source.startswith(FILE):
        return None if LIBRARY.match(source) else f"{source!r} is not {FORMS}"
    path = path_of(source)
    if not path.is_absolute() or ".." in path.parts or not path.name or source != f"{FILE}{path}":
        return f"{source!r} is not file: and an absolute path without '..', like file:/mnt/models/mistral-7b"
    if not source.isprintable():
        return f"{source!r} holds a control character: rename the file"
    return None
