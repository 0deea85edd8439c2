"""Weights that exist, and where they are served."""

from __future__ import annotations

from datetime import datetime

from .contract import Event, Telemetry, Value, registered
from .headers import ModelHeaders


class WeightFile(Value, frozen=True, kw_only=True):
    path: str
    """Relative, with forward slashes."""
    size_bytes: int
    sha256: str


class LibraryVersion(Value, frozen=True, kw_only=True):
    """An immutable set of files."""

    name: str
    version: str
    """The first 12 hex digits of the SHA-256 over the manifest, unless the source pins its own."""
    files: tuple[WeightFile, ...]
    source: str
    """Where it came from."""
    licence: str = ""
    headers: ModelHeaders | None = None
    """What its files say of the model; None: they say nothing, hold several models, or nobody looked."""


@registered
class ImportStarted(Event, frozen=True, kw_only=True, tag="library.import_started.v1"):
    """Weights are to be brought in. The leader does it, and the next one if it does not end; it is known by this
    event's sequence, and ends with ``version_added`` or ``import_ended``."""

    ids = ("name",)
    name: str
    source: str
    licence: str = ""


@registered
class ImportEnded(Event, frozen=True, kw_only=True, tag="library.import_ended.v1"):
    """An import is over and added nothing."""

    ids = ("name",)
    name: str
    started: int
    """Sequence of the event that started it."""
    problem: str = ""
    """Why it failed; empty: the library had that version already."""


@registered
class VersionAdded(Event, frozen=True, kw_only=True, tag="library.version_added.v1"):
    ids = ("name",)
    name: str
    version: LibraryVersion
    started: int = 0
    """Sequence of the event that started the import this ends; 0: none did."""


@registered
class VersionRemoved(Event, frozen=True, kw_only=True, tag="library.version_removed.v1"):
    ids = ("name",)
    name: str
    version: str
    freed_bytes: int = 0
    """Of files no other version has: every mirror deletes its copies."""
    kept_bytes: int = 0
    """Of files it shared with versions that stay."""


@registered
class MirrorServing(Event, frozen=True, kw_only=True, tag="mirror.serving.v1"):
    """A mirror serves the library at this address. Said again when the address changes, and once a day."""

    ids = ("mirror_id",)
    mirror_id: str
    url: str


@registered
class MirrorRetired(Event, frozen=True, kw_only=True, tag="mirror.retired.v1"):
    """A mirror that has not said for a week that it serves is asked for nothing any more, until it says so again."""

    ids = ("mirror_id",)
    mirror_id: str
    said_at: datetime
    """When it last did."""


class ImportUnderWay(Value, frozen=True, kw_only=True):
    """An import that has not ended."""

    name: str
    source: str
    started: int
    """Sequence of the event that started it."""
    since: datetime
    done_bytes: int = 0
    total_bytes: int = 0
    """0: it waits for others, or the mirror that answers is not the one that does it."""


@registered
class ImportProgress(Telemetry, frozen=True, kw_only=True, tag="tel.mirror.import.v1"):
    """How far an import is, twice a second while it goes on."""

    ids = ("mirror_id",)
    mirror_id: str
    name: str
    done_bytes: int
    total_bytes: int
    bytes_per_s: int = 0
