"""Lines of a spool that cannot be read back because the disk changed them: kept for a person to look at."""

from __future__ import annotations

import os
from pathlib import Path


class Unreadable:
    """One file, each line of it a position in the spool and what stands there. Raises OSError where it is there and
    cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._positions = self._read()

    def __len__(self) -> int:
        """How many lines were set aside, until somebody removes the file."""
        if self._positions and not self._path.exists():
            self._positions.clear()
        return len(self._positions)

    def add(self, position: int, line: bytes) -> None:
        """Keep the line at a position, once. Raises OSError."""
        if position in self._positions:
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, b"%d %s\n" % (position, line))
        finally:
            os.close(fd)
        self._positions.add(position)

    def _read(self) -> set[int]:
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return set()
        return {int(position) for line in lines if (position := line.partition(b" ")[0]).isdigit()}
