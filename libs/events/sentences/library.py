"""Sentences of the library of weights."""

from __future__ import annotations

from libs.events import library
from libs.events.times import rfc3339

from .registry import says
from .words import count, size


@says(library.ImportStarted)
def _import_started(event: library.ImportStarted) -> str:
    return f"weights {event.name} are being imported from {event.source}"


@says(library.ImportEnded)
def _import_ended(event: library.ImportEnded) -> str:
    return f"import of weights {event.name} ended: {event.problem or 'the library had that version already'}"


@says(library.VersionAdded)
def _version_added(event: library.VersionAdded) -> str:
    version = event.version
    files = f"{count(len(version.files), 'file')}, {size(sum(file.size_bytes for file in version.files))}"
    return f"weights {event.name} version {version.version} added: {files}, from {version.source}"


@says(library.VersionRemoved)
def _version_removed(event: library.VersionRemoved) -> str:
    kept = f", {size(event.kept_bytes)} shared with other versions stay" if event.kept_bytes else ""
    return f"weights {event.name} version {event.version} removed: {size(event.freed_bytes)} freed{kept}"


@says(library.MirrorServing)
def _mirror_serving(event: library.MirrorServing) -> str:
    return f"mirror {event.mirror_id} serves weights at {event.url}"


@says(library.MirrorRetired)
def _mirror_retired(event: library.MirrorRetired) -> str:
    return f"mirror {event.mirror_id}, last heard {rfc3339(event.said_at)}, is asked for nothing any more"
