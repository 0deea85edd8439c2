"""A version's manifest and the name it gives the version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from libs.events.library import WeightFile

MAX_FILES = 2_000
"""Of a version: its event, its library entry and every node's orders list them."""


def in_order(files: Iterable[WeightFile]) -> tuple[WeightFile, ...]:
    """The files by path, as manifests list them."""
    return tuple(sorted(files, key=lambda file: file.path))


def version_of(files: Iterable[WeightFile]) -> str:
    """The first 12 hex digits of the SHA-256 over the manifest: a line ``<sha256> <size> <path>`` for each file,
    by path. The same files give the same version, wherever they came from."""
    lines = (f"{file.sha256} {file.size_bytes} {file.path}\n" for file in in_order(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]
