"""What engines print: files that they append to, whoever watches."""

from __future__ import annotations

import os
from pathlib import Path

_MAX_BYTES = 256 * 1024
"""Read from the end of a file at most, for one answer."""

_ROTATE_BYTES = 64 * 1024 * 1024


def last_lines(path: Path, count: int) -> list[str]:
    """The last ``count`` lines, oldest first; empty when there is no file."""
    return tail(path, count, 0)[0]


def tail(path: Path, count: int, after: int) -> tuple[list[str], int]:
    """The last ``count`` lines beyond byte ``after``, and the byte up to which the file was read.

    A file shorter than ``after`` began anew. A line that is not finished is left for the next time.
    """
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            start = after if after <= size else 0
            start = max(start, size - _MAX_BYTES)
            opened.seek(start)
            content = opened.read(size - start)
    except OSError:
        return [], 0
    if after:
        content = content[: content.rfind(b"\n") + 1]
    lines = content.decode(errors="replace").splitlines()
    return lines[-count:] if count > 0 else [], start + len(content)


def trim(path: Path) -> None:
    """Keep an output file from filling the disk: beyond 64 MiB its end is moved aside and it begins anew.

    The engine goes on appending to the same file, so it is emptied and not replaced.
    """
    try:
        if path.stat().st_size < _ROTATE_BYTES:
            return
        with path.open("rb+") as opened:
            opened.seek(-_MAX_BYTES, os.SEEK_END)
            path.with_suffix(".1.log").write_bytes(opened.read())
            opened.truncate(0)
    except OSError:
        return


class Printed:
    """Whether an engine goes on printing, lines about looks at its page ``path`` left out: it notes each."""

    def __init__(self, output: Path, path: str) -> None:
        self._output = output
        self._path = path.encode()
        self._read = 0
        self._moves = 0

    def moves(self) -> int:
        """A number that is another one whenever it printed since."""
        try:
            with self._output.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                if size == self._read:
                    return self._moves
                start = self._read if self._read < size else 0
                opened.seek(max(start, size - _MAX_BYTES))
                content = opened.read(_MAX_BYTES)
        except OSError:
            return self._moves
        self._read = size
        if any(line.strip() and self._path not in line for line in content.splitlines()):
            self._moves += 1
        return self._moves
