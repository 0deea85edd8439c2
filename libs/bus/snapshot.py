"""Snapshots of a projection: a cache on disk, so that a start need not read the whole log.

A snapshot is used only when it was made by the same code, from the same stream, and is not ahead of it. Without
one, or with one that is refused, a start reads the log from its beginning and comes to the same state.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec

import libs.events

log = logging.getLogger("llmgw.bus")

S = TypeVar("S")


def code_hash(*packages: ModuleType) -> str:
    """SHA-256 (hex) over the sources of packages and of the contracts: other code may fold otherwise."""
    digest = hashlib.sha256()
    for package in (libs.events, *packages):
        for folder in package.__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class _File(msgspec.Struct):
    code: str
    stream: str
    position: int
    applied: dict[str, tuple[Any, str, int]]
    state: msgspec.Raw


class Snapshot(Generic[S]):
    """One projection's snapshot file. ``kind`` is the state's type, which msgspec must be able to read back."""

    def __init__(self, path: Path, kind: type[S], *packages: ModuleType) -> None:
        self._path = path
        self._kind = kind
        self._code = code_hash(*packages)

    def load(self, stream: str, last: int) -> tuple[S, int, dict[str, tuple[Any, str, int]]] | None:
        """State, position and remembered causes; None when there is none that may be used.

        ``stream`` identifies the stream (its creation time), ``last`` is its last sequence.
        """
        try:
            file = msgspec.json.decode(self._path.read_bytes(), type=_File)
            if (file.code, file.stream) != (self._code, stream) or file.position > last:
                log.info("the snapshot %s is of other code or another log: reading from the beginning", self._path)
                return None
            return msgspec.json.decode(file.state, type=self._kind), file.position, file.applied
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("the snapshot %s cannot be read (%s): reading from the beginning", self._path, error)
            return None

    def save(self, stream: str, position: int, state: S, applied: dict[str, tuple[Any, str, int]]) -> None:
        """Write it whole or not at all. A disk that is full costs the cache, nothing else."""
        raw = msgspec.Raw(msgspec.json.encode(state))
        data = msgspec.json.encode(_File(self._code, stream, position, applied, raw))
        scratch = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.rename(self._path)
        except OSError as error:
            log.warning("the snapshot %s could not be written: %s", self._path, error)
