"""How many connections each worker of a socket has: who has more leaves the next one to the others.

The system wakes all workers for a new connection, and which of them is there first has nothing to do with which of
them has least to do: without this one of two may get nearly all.
"""

from __future__ import annotations

import mmap
import os

_ROW_BYTES = 8
MORE = 1
"""One connection more or less is no reason to wait."""


def shared_memory(workers: int) -> int:
    """A file descriptor of memory for so many workers, which they inherit."""
    descriptor = os.memfd_create("llmgw-connections")
    os.ftruncate(descriptor, workers * _ROW_BYTES)
    return descriptor


def worker_ended(descriptor: int, index: int) -> None:
    """A worker has ended: it takes no connections."""
    os.pwrite(descriptor, bytes(_ROW_BYTES), index * _ROW_BYTES)


class ConnectionBalance:
    """The workers of a socket, as one of them sees it. A row is a worker's connections and one; 0: it takes none."""

    def __init__(self, descriptor: int, workers: int, index: int) -> None:
        """``index`` is this worker's. The descriptor is closed here."""
        self._rows = memoryview(mmap.mmap(descriptor, workers * _ROW_BYTES)).cast("Q")
        os.close(descriptor)
        self._index = index
        self._rows[index] = 0

    def report(self, connections: int) -> None:
        """This worker takes connections and has so many."""
        self._rows[self._index] = connections + 1

    def surplus(self, connections: int) -> int:
        """How many more this worker, which takes connections and has so many, has than another one that does, beyond
        those that are no reason to wait."""
        self.report(connections)
        return max(0, connections + 1 - min(row for row in self._rows if row) - MORE)

    def pause(self) -> bool:
        """This worker takes no connections for now. Whether another one does."""
        self._rows[self._index] = 0
        return any(self._rows)
