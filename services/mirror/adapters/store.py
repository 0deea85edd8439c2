"""Files by their content on disk: ``store/sha256/ab/<sha256>``.

A file stands under its name only once all of it is there, summed and on the disk; until then it has a name below
``store/incoming`` that nothing serves. So a process killed at any moment leaves whole files or none.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import BinaryIO

from libs.events.library import WeightFile

log = logging.getLogger("llmgw.mirror")

BLOCK_BYTES = 4 * 1024 * 1024

Moved = Callable[[int], None]
"""Told how many more bytes have been read. May raise to give up."""


class StoreTaken(Exception):
    """Two processes in one store would delete each other's work."""


class WrongSum(Exception):
    """A file is not the one that was expected."""


class Store:
    """Blocking; called from threads. Placing and deleting exclude each other."""

    def __init__(self, data_dir: Path) -> None:
        self._files = data_dir / "store" / "sha256"
        self._incoming = data_dir / "store" / "incoming"
        self._damaged = data_dir / "store" / "damaged"
        self._proven: dict[str, tuple[int, int, float]] = {}
        """Sum to size, time of change and when it was last read and found right."""
        self._lock = threading.Lock()
        self._pinned: set[str] = set()
        self._fresh: set[str] = set()
        self._count = 0
        self._held: int | None = None

    def open(self) -> None:
        """Make the folders; drop what an earlier process left half done. Raises StoreTaken.

        The store stays this process's own until it ends.
        """
        self._files.mkdir(parents=True, exist_ok=True)
        self._held = os.open(self._files.parent / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StoreTaken(
                f"another mirror uses the store in {self._files.parent}; give each a data_dir of its own"
            ) from None
        self._incoming.mkdir(exist_ok=True)
        self._damaged.mkdir(exist_ok=True)
        for left_over in self._incoming.iterdir():
            log.info("dropping %s, left by an import that did not end", left_over.name)
            left_over.unlink()

    def close(self) -> None:
        """Let another process have the store."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def path(self, sha256: str) -> Path:
        """Where a file stands, or would."""
        return self._files / sha256[:2] / sha256

    def has(self, file: WeightFile) -> bool:
        """Whether the file is here with the right length. Its sum was right when it was placed."""
        try:
            return self.path(file.sha256).stat().st_size == file.size_bytes
        except FileNotFoundError:
            return False

    def intact(self, sha256: str, moved: Moved, within_s: float = 0.0) -> bool:
        """Read a file and see whether it still is what its name says; one that is not is set aside, where nothing
        serves it. One that was found right less than ``within_s`` ago, and did not change since, is not read again.

        Raises OSError, FileNotFoundError where it is not here, and what ``moved`` raises.
        """
        path = self.path(sha256)
        with path.open("rb", buffering=0) as source:
            status = os.fstat(source.fileno())
            known = self._proven.get(sha256)
            same = known is not None and known[:2] == (status.st_size, status.st_mtime_ns)
            if known is not None and same and time.monotonic() - known[2] < within_s:
                return True
            sum_, _ = copy(source, None, moved)
        if sum_ == sha256:
            self._proven[sha256] = status.st_size, status.st_mtime_ns, time.monotonic()
            return True
        with self._lock:
            # Not what took its place meanwhile.
            if path.exists() and path.stat().st_ino == status.st_ino:
                path.replace(self._damaged / sha256)
        return False

    def damaged(self, sha256: str) -> bool:
        """Whether a copy was found damaged, and no right one has come since."""
        return (self._damaged / sha256).exists()

    def free_bytes(self) -> int:
        """Of the disk, for this process's user."""
        stat = os.statvfs(self._incoming)
        return stat.f_bavail * stat.f_frsize

    def incoming(self) -> Path:
        """A new name to write to. What stands there is lost unless it is placed."""
        with self._lock:
            self._count += 1
            return self._incoming / f"{os.getpid()}-{self._count}"

    def add(self, source: BinaryIO, moved: Moved, expected: WeightFile | None = None) -> tuple[str, int]:
        """Copy an open file into the store; returns its sum and length.

        Raises WrongSum where it is not what was expected, OSError, and what ``moved`` raises.
        """
        name = self.incoming()
        try:
            with open(name, "xb", buffering=0) as out:
                sha256, size = copy(source, out, moved)
            if expected is not None and (sha256, size) != (expected.sha256, expected.size_bytes):
                raise WrongSum(f"{size} of {expected.size_bytes} bytes with the SHA-256 {sha256}")
            self._place(name, sha256)
        except BaseException:
            name.unlink(missing_ok=True)
            raise
        return sha256, size

    def adopt(self, name: Path, expected: str, moved: Moved) -> tuple[str, int]:
        """Take a file that was written to a name from ``incoming``; returns its sum and length.

        Raises WrongSum unless its sum is ``expected``, where that is not empty.
        """
        try:
            with open(name, "rb", buffering=0) as written:
                sha256, size = copy(written, None, moved)
            if expected and sha256 != expected:
                raise WrongSum(f"its SHA-256 is {sha256} but should be {expected}")
            self._place(name, sha256)
        except BaseException:
            name.unlink(missing_ok=True)
            raise
        return sha256, size

    def _place(self, name: Path, sha256: str) -> None:
        """One rename makes the file visible, after its bytes are on the disk. An older copy is replaced by it: they are
        equal, unless the older one went bad."""
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        target = self.path(sha256)
        with self._lock:
            self._pinned.add(sha256)
            if not target.exists():
                self._fresh.add(sha256)
            if not target.parent.exists():
                target.parent.mkdir(exist_ok=True)
                _sync_folder(target.parent.parent)
            name.chmod(0o444)
            name.replace(target)
            (self._damaged / sha256).unlink(missing_ok=True)
            self._proven.pop(sha256, None)
        _sync_folder(target.parent)

    def unpin(self) -> None:
        """Files of the last import may be deleted again: it is over."""
        with self._lock:
            self._pinned.clear()
            self._fresh.clear()

    def named(self, sums: AbstractSet[str]) -> None:
        """The log names these files: from now on it says whether they may be deleted."""
        with self._lock:
            self._pinned -= sums
            self._fresh -= sums

    def discard(self) -> None:
        """Delete what the last import brought: it failed."""
        with self._lock:
            fresh = self._fresh
            self._pinned, self._fresh = set(), set()
        self.delete(fresh)

    def delete(self, sums: Iterable[str]) -> int:
        """Delete files, save those a running import has placed; returns the bytes freed."""
        freed = 0
        for sha256 in sums:
            with self._lock:
                if sha256 in self._pinned:
                    continue
                self._proven.pop(sha256, None)
                (self._damaged / sha256).unlink(missing_ok=True)
                try:
                    size = self.path(sha256).stat().st_size
                    self.path(sha256).unlink()
                except FileNotFoundError:
                    continue
            freed += size
        return freed


def copy(source: BinaryIO, out: BinaryIO | None, moved: Moved) -> tuple[str, int]:
    """Sum a file, writing it out on the way if wanted; returns SHA-256 (hex) and length. Raises OSError, and what
    ``moved`` raises."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK_BYTES))
    size = 0
    while count := source.readinto(buffer):  # type: ignore[attr-defined]
        block = buffer[:count]
        digest.update(block)
        if out is not None:
            _write(out, block)
        size += count
        moved(count)
    return digest.hexdigest(), size


def _write(out: BinaryIO, block: memoryview) -> None:
    while block:
        block = block[out.write(block) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network filesystems do not sync folders; there the server orders the rename itself.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
