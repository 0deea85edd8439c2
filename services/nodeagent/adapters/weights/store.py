"""Weights on this machine's disk: files by their SHA-256, and a folder of links for each model version.

``content/<sha256>`` exists only when its sum was right, and ``content/<sha256>.checked`` says what the file
looked like then: as long as size and time are the same it is not read again. ``parts/<sha256>`` is what a
download has so far. ``models/<name>/<version>/`` holds links that appear when every file of the version is there.
``removing/`` holds versions on their way out: moved there in one step, so that none is ever half there.
``listings/`` says which files a version from a hub has: a commit's never change.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Set
from pathlib import Path

import msgspec

from libs.events.library import WeightFile
from libs.events.machine import WeightsHere
from libs.events.views import WeightsWanted
from services.nodeagent.adapters.disk import durable
from services.nodeagent.core.shard.weights import pickled

BLOCK = 256 * 1024

SHA256 = re.compile("[0-9a-f]{64}")

_KEPT_FREE_BYTES = 512 * 1024 * 1024
"""Never fill a disk to the last byte: logs, state and the system itself live on it."""


class Rejected(Exception):
    """The weights must not be used; the sentence says why."""


class WrongSum(Rejected):
    """A file is not the one it should be."""


class _Checked(msgspec.Struct, frozen=True):
    size_bytes: int
    modified_ns: int


class Store:
    """All methods block on the disk: call them from a thread."""

    def __init__(self, root: Path) -> None:
        self._content = root / "content"
        self._parts = root / "parts"
        self._models = root / "models"
        self._removing = root / "removing"
        self._listings = root / "listings"
        self._linking = threading.Lock()
        for folder in (self._content, self._parts, self._models, self._removing, self._listings):
            folder.mkdir(parents=True, exist_ok=True)

    def listing(self, name: str, version: str) -> tuple[WeightFile, ...] | None:
        """The files of a version that a hub listed; None: it was not asked yet."""
        try:
            return msgspec.json.decode(self._listing(name, version).read_bytes(), type=tuple[WeightFile, ...])
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def keep_listing(self, name: str, version: str, files: tuple[WeightFile, ...]) -> None:
        """Keep which files a version has, for the next agent. Raises OSError."""
        durable.write(self._listing(name, version), msgspec.json.encode(files))

    def _listing(self, name: str, version: str) -> Path:
        return self._listings / f"{name}@{version}.json"

    def put(self, content: bytes) -> str:
        """Keep a small file that was checked by other means; its SHA-256."""
        sha256 = hashlib.sha256(content).hexdigest()
        with self._linking:
            durable.write(self._content / sha256, content, 0o644)
        return sha256

    def part(self, sha256: str) -> Path:
        """Where a download keeps what it has of a file."""
        return self._parts / sha256

    def size_of_part(self, sha256: str) -> int:
        """Bytes a download left of a file."""
        try:
            return self.part(sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def has(self, file: WeightFile, checking: Callable[[int], None]) -> bool:
        """Whether the file is here and right. One that changed since it was checked is read again, and deleted
        if it is wrong; ``checking`` is told the bytes read so far."""
        path = self._content / file.sha256
        try:
            stat = path.stat()
        except FileNotFoundError:
            return False
        seen = _Checked(stat.st_size, stat.st_mtime_ns)
        note = self._content / f"{file.sha256}.checked"
        try:
            if msgspec.json.decode(note.read_bytes(), type=_Checked) == seen and stat.st_size == file.size_bytes:
                return True
        except (OSError, msgspec.DecodeError):
            pass
        if stat.st_size == file.size_bytes and sum_of(path, checking) == file.sha256:
            durable.write(note, msgspec.json.encode(seen))
            return True
        note.unlink(missing_ok=True)
        path.unlink()
        return False

    def lacking_bytes(self, files: Iterable[WeightFile]) -> int:
        """What of these files would have to be fetched."""
        return sum(
            file.size_bytes - self.size_of_part(file.sha256)
            for file in files
            if not (self._content / file.sha256).exists()
        )

    def room_for(self, more_bytes: int) -> str | None:
        """Why ``more_bytes`` cannot be stored, or None."""
        free = shutil.disk_usage(self._content).free
        if more_bytes + _KEPT_FREE_BYTES <= free:
            return None
        return (
            f"{more_bytes // 2**20} MB must be fetched and {free // 2**20} MB are free in {self._content.parent} "
            f"({_KEPT_FREE_BYTES // 2**20} MB of it are kept free)"
        )

    def suspicious(self, file: WeightFile) -> bool:
        """Whether a file that is here is a pickle, whatever its name says."""
        with (self._content / file.sha256).open("rb") as opened:
            return pickled(opened.read(16))

    def keep(self, file: WeightFile, found_sha256: str, pickles_allowed: bool) -> None:
        """Make a finished part the file it should be. Raises Rejected, and deletes the part, when it is not."""
        part = self.part(file.sha256)
        if found_sha256 != file.sha256:
            part.unlink(missing_ok=True)
            raise WrongSum(f"{file.path} has the SHA-256 {found_sha256} and should have {file.sha256}; it was deleted")
        with part.open("rb") as opened:
            suspicious = pickled(opened.read(16))
        if suspicious and not pickles_allowed:
            part.unlink(missing_ok=True)
            raise Rejected(f"{file.path} is a pickle inside, which runs code when it is loaded; it was deleted")
        path = self._content / file.sha256
        part.replace(path)
        durable.sync_folder(self._content)
        stat = path.stat()
        checked = _Checked(stat.st_size, stat.st_mtime_ns)
        durable.write(self._content / f"{file.sha256}.checked", msgspec.json.encode(checked))

    def link(self, weights: WeightsWanted) -> Path:
        """The folder of a version whose files are all here, each a link into the content."""
        with self._linking:
            return self._link(weights)

    def _link(self, weights: WeightsWanted) -> Path:
        folder = self._models / weights.name / weights.version
        for file in weights.files:
            link = folder / file.path
            target = os.path.relpath(self._content / file.sha256, link.parent)
            if link.is_symlink() and os.readlink(link) == target:
                continue
            link.parent.mkdir(parents=True, exist_ok=True)
            scratch = link.with_name(f".{link.name}.new")
            scratch.unlink(missing_ok=True)
            scratch.symlink_to(target)
            scratch.replace(link)
        return folder

    def complete(self) -> tuple[WeightsHere, ...]:
        """Every version of which all files are here, by name."""
        by_version = {
            f"{version.parent.name}@{version.name}": files
            for version in sorted(self._models.glob("*/*"))
            if (files := self._files_of(version))
        }
        users = Counter(sha256 for files in by_version.values() for sha256 in files)
        return tuple(
            WeightsHere(
                weights=name,
                size_bytes=sum(files.values()),
                shared_bytes=sum(size for sha256, size in files.items() if users[sha256] > 1),
            )
            for name, files in by_version.items()
        )

    def _files_of(self, version: Path) -> dict[str, int]:
        """SHA-256 of each file of a version to its size; empty when one is missing, or when it is no folder of ours."""
        sizes: dict[str, int] = {}
        if version.is_symlink():
            return {}
        for link in _links(version):
            content = self._content / Path(os.readlink(link)).name
            try:
                sizes[content.name] = content.stat().st_size
            except OSError:
                return {}
        return sizes

    def holds(self, name: str, version: str) -> bool:
        """Whether anything of a version is here."""
        return (self._models / name / version).is_dir()

    def remove(self, name: str, version: str, keep: Set[str]) -> int:
        """Remove a version and what only it has of the content; bytes that became free, counted whole.

        ``keep``: SHA-256 of files that stay although no version here links them yet. Nothing outside the store is
        touched: of a link only the link goes. Raises Rejected when there is no such version, or something in its
        folder is not the store's.
        """
        with self._linking:
            folder = self._models / name / version
            if folder.is_symlink() or not folder.is_dir():
                raise Rejected(f"{name}@{version} is not on this machine")
            strange = [path for path in folder.rglob("*") if not path.is_symlink() and not path.is_dir()]
            if strange:
                raise Rejected(f"{strange[0]} was not put there by llmgw: nothing was removed; move it away first")
            self._finish(keep)
            self._listing(name, version).unlink(missing_ok=True)
            folder.rename(self._removing / f"{name}@{version}")
            for parent in (self._removing, folder.parent):
                durable.sync_folder(parent)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()  # the last version of that name
            return self._finish(keep)

    def finish_removals(self, keep: Set[str]) -> int:
        """Go on with removals that were cut short; bytes that became free."""
        with self._linking:
            return self._finish(keep)

    def _finish(self, keep: Set[str]) -> int:
        freed = 0
        for folder in sorted(self._removing.iterdir()):
            used = {Path(os.readlink(link)).name for link in _links(self._models)} | keep
            for sha256 in {Path(os.readlink(link)).name for link in _links(folder)} - used:
                freed += self._drop(sha256)
            shutil.rmtree(folder)
        return freed

    def _drop(self, sha256: str) -> int:
        path = self._content / sha256
        if not SHA256.fullmatch(sha256):
            return 0
        (self._content / f"{sha256}.checked").unlink(missing_ok=True)
        try:
            size = path.lstat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size


def _links(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_symlink()]


def sum_of(path: Path, progress: Callable[[int], None]) -> str:
    """SHA-256 of a file, hex; ``progress`` is told the bytes read so far."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    done = 0
    with path.open("rb", buffering=0) as opened:
        while count := opened.readinto(buffer):
            digest.update(buffer[:count])
            done += count
            progress(done)
    return digest.hexdigest()
