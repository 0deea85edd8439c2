"""One agent for one data folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from libs.runtime.cannot_start import CannotStart

from . import durable


class FolderInUse(CannotStart):
    """Another process works on the folder."""


class DataFolder:
    """Holds the folder for as long as the process lives: the kernel lets go of it even after ``kill -9``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def __enter__(self) -> DataFolder:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Raises FolderInUse naming the process that has it."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise FolderInUse(
                f"{self.path} is in use by process {holder}: stop that agent, or give this one a data_dir of its own"
            ) from None
        with contextlib.suppress(OSError):  # on a full disk the next one to come is told of nobody
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another agent have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def next_run(self) -> int:
        """How often an agent has started here, this start counted in."""
        path = self.path / "agent_runs"
        try:
            earlier = int(path.read_text())
        except (OSError, ValueError):
            earlier = 0
        durable.write(path, str(earlier + 1).encode())
        return earlier + 1
