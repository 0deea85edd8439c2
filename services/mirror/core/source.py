"""Where weights may come from, and what may come along."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from libs.events.refusal import Refused

MODULE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")


class PathSource(NamedTuple):
    path: str
    """Absolute; a file or a folder on the mirror's machine."""


class PackageSource(NamedTuple):
    module: str
    """A Python module with ``assemble(output_path)``, installed where the mirror runs."""


Source = PathSource | PackageSource


def parse_source(text: str) -> Source:
    """The source that ``path:/FILE-OR-FOLDER`` or ``package:MODULE`` names. Raises Refused with the path ``source``."""
    kind, colon, rest = text.partition(":")
    if kind == "path" and rest.startswith("/"):
        return PathSource(rest)
    if kind == "path" and colon:
        raise Refused.one("source", f"{rest!r} is not an absolute path on the mirror's machine: begin it with '/'")
    if kind == "package" and MODULE.match(rest):
        return PackageSource(rest)
    if kind == "package" and colon:
        raise Refused.one("source", f"{rest!r} is not the name of a Python module")
    raise Refused.one("source", f"{text!r} is not a source: it is path:/FILE-OR-FOLDER or package:MODULE")


def left_out(path: str) -> bool:
    """Whether a file of a folder is not part of a model: hidden files, and Python code, which nobody here may run."""
    parts = PurePosixPath(path).parts
    return any(part.startswith(".") or part == "__pycache__" for part in parts) or path.endswith((".py", ".pyc"))


def path_problem(path: str) -> str | None:
    """Why a relative path cannot stand in a manifest, or None."""
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or str(pure) != path:
        return f"{path!r} leads outside the model's folder"
    if "\\" in path or any(ord(c) < 32 or ord(c) == 127 for c in path):
        return f"{path!r} holds a backslash or a control character: rename the file"
    if any(0xD800 <= ord(c) <= 0xDFFF for c in path):
        return f"{path!r} is not UTF-8: rename the file"
    return None


_LICENCE_FILE = re.compile(r"^(licen[sc]e|copying|notice|terms|readme|.*[_-]terms)\b", re.IGNORECASE)
_LICENCE_LINE = re.compile(r"^license:\s*[\"']?([A-Za-z0-9][A-Za-z0-9 .+_-]{0,60}?)[\"']?\s*$", re.MULTILINE)


def is_licence_file(name: str) -> bool:
    """Files of a package that go with its weights: licence, terms, notice, model card."""
    return _LICENCE_FILE.match(name) is not None


def licence_in(model_card: str) -> str:
    """The licence a model card declares in its front matter (``license: apache-2.0``), or nothing."""
    if not model_card.startswith("---"):
        return ""
    front, closed, _ = model_card[3:].partition("\n---")
    line = _LICENCE_LINE.search(front) if closed else None
    return line[1] if line else ""
