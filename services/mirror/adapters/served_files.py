"""What this mirror hands out: the files of the library that are here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from libs.events import encode
from libs.events.library import LibraryVersion, WeightFile

from .store import Store


@dataclass(frozen=True)
class Manifest:
    """A version as it is answered to nodes."""

    body: bytes
    """The version as JSON."""
    etag: str
    missing: tuple[str, ...]
    """Paths of files that should be here and are not."""
    damaged: tuple[str, ...] = ()
    """Of those, the ones whose copy was found damaged."""


@dataclass(frozen=True)
class ServedFiles:
    """The files that are handed out. A snapshot; replaced as a whole, so threads read it without a lock."""

    files: dict[str, WeightFile] = field(default_factory=dict)
    """By sum; only files that are here, whole."""
    wanted: dict[str, WeightFile] = field(default_factory=dict)
    """By sum; those that should be here and are not."""
    manifests: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """One sentence for each version that is not all here."""
        return [
            f"{name}@{version}: {_words(manifest)}: import it again, unless another mirror has it"
            for (name, version), manifest in self.manifests.items()
            if manifest.missing
        ]


def _words(manifest: Manifest) -> str:
    if manifest.damaged:
        return f"the copies of {len(manifest.damaged)} files here are damaged, as {manifest.damaged[0]}"
    return f"{len(manifest.missing)} files are not here, as {manifest.missing[0]}"


def inventory(store: Store, versions: Iterable[LibraryVersion]) -> ServedFiles:
    """The files of the library that are here; ``versions`` of a name in the order they were added. Blocking."""
    served = ServedFiles()
    for version in versions:
        missing, damaged = [], []
        for file in version.files:
            if file.sha256 in served.files or store.has(file):
                served.files[file.sha256] = file
            else:
                missing.append(file.path)
                served.wanted[file.sha256] = file
                if store.damaged(file.sha256):
                    damaged.append(file.path)
        body = encode(version)
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        served.manifests[version.name, version.version] = Manifest(body, etag, tuple(missing), tuple(damaged))
        served.latest[version.name] = version.version
    return served
