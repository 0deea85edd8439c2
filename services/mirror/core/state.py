"""What the log says about the library, and what a command does to it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import msgspec

from libs.events.commands import CancelImport, ImportVersion, RemoveVersion
from libs.events.contract import Command, Event, Value
from libs.events.leadership import MirrorElected
from libs.events.library import (
    ImportEnded,
    ImportStarted,
    LibraryVersion,
    MirrorRetired,
    MirrorServing,
    VersionAdded,
    VersionRemoved,
    WeightFile,
)
from libs.events.model import ModelDefined, ModelRemoved
from libs.events.refusal import Refused
from libs.events.times import rfc3339
from libs.events.views import LibraryEntry

from .source import parse_source

NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}\Z")


ANNOUNCED_EVERY = timedelta(days=1)
"""How often a mirror says again that it serves."""
RETIRED_AFTER = timedelta(days=7)
"""A mirror that has not said for so long that it serves is gone."""


class Serving(msgspec.Struct, frozen=True):
    """A mirror that said where it serves."""

    url: str
    position: int
    """Sequence of the event that said so."""
    at: datetime
    """When it said so last."""


class Import(Value, frozen=True, kw_only=True):
    """An import that was started and has not ended."""

    name: str
    source: str
    licence: str
    since: datetime
    started: int
    """Sequence of the event that started it."""


class State(msgspec.Struct, kw_only=True):
    versions: dict[str, dict[str, LibraryVersion]] = {}
    """Name to version to files; the version added last stands last."""
    imports: dict[str, Import] = {}
    """By the sequence that started them, oldest first."""
    mirrors: dict[str, Serving] = {}
    former: set[str] = set()
    """Sums of files only removed versions had: what may be deleted from a store. A file the log never named stays."""
    sources: dict[str, tuple[str, ...]] = {}
    """Model to what it needs of the library: its source and those of its fine-tunings."""
    election: int = 0
    """Sequence of the newest election."""
    elected_at: datetime | None = None

    def files(self) -> dict[str, WeightFile]:
        """Every file of the library by its sum."""
        return {
            file.sha256: file
            for versions in self.versions.values()
            for version in versions.values()
            for file in version.files
        }

    def has(self, version: LibraryVersion) -> bool:
        """Whether the library has the version, whatever it was made of."""
        return version.version in self.versions.get(version.name, {})


def evolve(state: State, event: Event, position: int) -> State:
    """Fold one event of the log into the state, in place."""
    match event:
        case ImportStarted():
            state.imports[str(position)] = Import(
                name=event.name, source=event.source, licence=event.licence, since=event.at, started=position
            )
        case ImportEnded():
            state.imports.pop(str(event.started), None)
        case VersionAdded(name=name, version=version):
            state.imports.pop(str(event.started), None)
            versions = state.versions.setdefault(name, {})
            versions.pop(version.version, None)
            versions[version.version] = version
            state.former.difference_update(file.sha256 for file in version.files)
        case VersionRemoved(name=name, version=removed):
            gone = state.versions.get(name, {}).pop(removed, None)
            if gone is not None and not state.versions[name]:
                del state.versions[name]
            if gone is not None:
                state.former |= {file.sha256 for file in gone.files} - state.files().keys()
        case MirrorServing():
            state.mirrors[event.mirror_id] = Serving(event.url, position, event.at)
        case MirrorRetired():
            state.mirrors.pop(event.mirror_id, None)
        case ModelDefined() if event.spec.source or event.spec.loras:
            loras = (lora.source for lora in event.spec.loras)
            state.sources[event.model] = tuple(filter(None, (event.spec.source, *loras)))
        case ModelDefined() | ModelRemoved():
            state.sources.pop(event.model, None)
        case MirrorElected():
            state.election, state.elected_at = position, event.at
    return state


def decide(state: State, command: Command, command_id: str, now: datetime) -> Event | None:
    """The event a command causes. Raises Refused."""
    match command:
        case ImportVersion():
            if not NAME.match(command.name):
                raise Refused.one(
                    "name",
                    f"{command.name!r} is not a name: lower-case letters, digits, '.', '_' and '-', 63 at most",
                )
            parse_source(command.source)
            return _import(state, command, now)
        case CancelImport():
            for wanted in state.imports.values():
                if wanted.name == command.name:
                    problem = f"cancelled{f': {command.reason}' if command.reason else ''}"
                    return ImportEnded(at=now, name=wanted.name, started=wanted.started, problem=problem)
            raise Refused.one("name", f"no import of {command.name!r} is under way: `llmgw library list` shows those")
        case RemoveVersion():
            return _remove(state, command, now)
        case _:
            raise Refused.one("", f"the mirror takes no command {type(command).__name__}")


def retirements(state: State, now: datetime) -> list[tuple[str, Event]]:
    """Mirrors that have not said for long that they serve, as (cause, event)."""
    if state.elected_at is None or now - state.elected_at < ANNOUNCED_EVERY:
        # All may have been away together: each has the time to say so.
        return []
    return [
        (
            f"mirror:retired:{mirror_id}:{serving.position}",
            MirrorRetired(at=now, mirror_id=mirror_id, said_at=serving.at),
        )
        for mirror_id, serving in state.mirrors.items()
        if now - serving.at > RETIRED_AFTER
    ]


def _import(state: State, command: ImportVersion, now: datetime) -> Event | None:
    for other in state.imports.values():
        if other.name != command.name:
            continue
        if (other.source, other.licence) == (command.source, command.licence):
            return None
        raise Refused.one(
            "name",
            f"{command.name} is being imported from {other.source} since {rfc3339(other.since)}: wait for "
            f"it, or `llmgw library cancel {command.name}`",
        )
    return ImportStarted(at=now, name=command.name, source=command.source, licence=command.licence)


def _remove(state: State, command: RemoveVersion, now: datetime) -> Event:
    versions = state.versions.get(command.name)
    if versions is None:
        known = ", ".join(sorted(state.versions)) or "nothing"
        raise Refused.one("name", f"the library has no {command.name!r}; it has: {known}")
    version = versions.get(command.version)
    if version is None:
        raise Refused.one(
            "version", f"{command.name!r} has no version {command.version!r}; it has: {', '.join(versions)}"
        )
    pinned = f"library:{command.name}@{command.version}"
    newest = f"library:{command.name}" if len(versions) == 1 else pinned
    users = sorted(model for model, sources in state.sources.items() if {pinned, newest} & {*sources})
    if users:
        raise Refused.one("version", f"{', '.join(users)} runs on it: remove the model or change its source first")
    freed, kept = _shares(state, version)
    return VersionRemoved(at=now, name=command.name, version=command.version, freed_bytes=freed, kept_bytes=kept)


def _shares(state: State, version: LibraryVersion) -> tuple[int, int]:
    """Bytes only this version has, and bytes it shares with others. A file it holds twice counts once."""
    others = {
        file.sha256
        for versions in state.versions.values()
        for other in versions.values()
        if other is not version
        for file in other.files
    }
    sizes = {file.sha256: file.size_bytes for file in version.files}
    kept = sum(size for sha256, size in sizes.items() if sha256 in others)
    return sum(sizes.values()) - kept, kept


def entries(state: State) -> dict[str, LibraryEntry]:
    """The view ``library``, whole."""
    mirrors = tuple(state.mirrors[mirror_id].url for mirror_id in sorted(state.mirrors))
    out: dict[str, LibraryEntry] = {}
    for name, versions in state.versions.items():
        latest = next(reversed(versions.values()))
        out[name] = LibraryEntry(
            name=name,
            versions={version.version: version.files for version in versions.values()},
            latest=latest.version,
            mirrors=mirrors,
            source=latest.source,
            licence=latest.licence,
        )
    return out
