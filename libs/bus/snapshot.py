"""Snapshots of a projection: a cache on disk, so that a start need not read the whole log.

A snapshot is used only when it is whole, was made by the same code, from the same stream, and is not ahead of it.
Without one, or with one that is refused, a start reads the log from its beginning and comes to the same state.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec

import libs.events
from libs.events import BadPayload, UnknownTag
from libs.events.times import rfc3339

from .follow import Place

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


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


Causes = dict[str, tuple[datetime, str, int]]
"""Commands carried out lately: when, the event's tag, its sequence."""


TOLD_FOR = timedelta(days=7)
DIGEST = 64
"""Hexadecimal digits of the SHA-256 that stands before the rest of the file."""


class _File(msgspec.Struct):
    code: str
    stream: str
    position: int
    mark: str
    applied: Causes
    state: msgspec.Raw


class _Header(msgspec.Struct):
    stream: str
    position: int
    mark: str


class _Dropped(msgspec.Struct):
    at: datetime
    why: str


class Found(msgspec.Struct, Generic[S], frozen=True):
    """What a snapshot holds."""

    state: S
    position: int
    """Sequence of the last event the state holds."""
    mark: str
    """The mark of that event: another one stands there if the log was put back from a copy and went on differently."""
    applied: Causes


def _itself(value: Any) -> Any:
    return value


class Snapshot(Generic[S]):
    """One projection's snapshot file. ``packages``: where the code stands that folds the state."""

    def __init__(
        self,
        path: Path,
        kind: type[Any],
        *packages: ModuleType,
        keep: Callable[[S], Any] = _itself,
        restore: Callable[[Any], S] = _itself,
    ) -> None:
        """``keep`` makes of a state what is written, of the type ``kind``, which msgspec must be able to read back;
        ``restore`` makes a state of it. A state that msgspec can read back needs neither."""
        self._path = path
        self._note = path.with_name(f"{path.stem}-dropped.json")
        self._kind = kind
        self._keep = keep
        self._restore = restore
        self._code = code_hash(*packages)

    def load(self, stream: str, last: int) -> Found[S] | None:
        """None when there is none that may be used.

        ``stream`` is the stream's epoch, ``last`` its last sequence.
        """
        try:
            for left_over in self._path.parent.glob(f"{self._path.name}.*.new"):
                left_over.unlink()
            data = self._path.read_bytes()
            if _digest(data[DIGEST:]) != data[:DIGEST]:
                log.warning("the snapshot %s is damaged, or of another version: reading from the beginning", self._path)
                return None
            file = msgspec.json.decode(data[DIGEST:], type=_File)
            if (file.code, file.stream) != (self._code, stream) or file.position > last:
                log.info("the snapshot %s is of other code or another log: reading from the beginning", self._path)
                return None
            kept = msgspec.json.decode(file.state, type=self._kind)
            return Found(self._restore(kept), file.position, file.mark, file.applied)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, msgspec.ValidationError, UnknownTag, BadPayload) as error:
            log.warning("the snapshot %s cannot be read (%s): reading from the beginning", self._path, error)
            return None

    def packed(self, stream: str, position: int, mark: str, state: S, applied: Causes) -> bytes:
        """What ``write`` puts on disk: made at once, as the state goes on changing."""
        raw = msgspec.Raw(msgspec.json.encode(self._keep(state)))
        data = msgspec.json.encode(_File(self._code, stream, position, mark, applied, raw))
        return _digest(data) + data

    def place(self) -> Place | None:
        """How far in which log there is one, whatever code made it."""
        try:
            data = self._path.read_bytes()
            file = msgspec.json.decode(data[DIGEST:], type=_Header) if _digest(data[DIGEST:]) == data[:DIGEST] else None
        except (OSError, msgspec.DecodeError, msgspec.ValidationError):
            return None
        return Place(file.stream, file.position, file.mark) if file is not None else None

    def drop(self, why: str, now: datetime) -> None:
        """There is none any more, as its log is no more; that is remembered for a week. Where the disk does not let it
        go, whoever begins looks again whether its log is the one there is."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.error("the snapshot %s could not be removed: %s", self._path, error)
        self.write(msgspec.json.encode(_Dropped(now, why)), self._note)

    def dropped(self, now: datetime) -> str:
        """Why one was dropped in the last week, as a sentence; empty: none was."""
        try:
            note = msgspec.json.decode(self._note.read_bytes(), type=_Dropped)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError):
            return ""
        if now - note.at > TOLD_FOR:
            return ""
        return f"{note.why}, noticed on {rfc3339(note.at)}: what was said after that is gone"

    def write(self, data: bytes, path: Path | None = None) -> None:
        """Whole or not at all, whenever the process ends. A disk that is full costs the cache, nothing else."""
        path = path or self._path
        scratch = path.with_name(f"{path.name}.{os.getpid()}-{id(self)}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.rename(path)
        except OSError as error:
            log.warning("the snapshot %s could not be written: %s", path, error)
