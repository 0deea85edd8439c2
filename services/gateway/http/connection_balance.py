"""Taking connections off a socket that workers share: who has more leaves the next one to the others.

The system wakes all workers for a new connection, and which of them is there first has nothing to do with which of
them has least to do: without this one of two may get nearly all.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import socket
from collections.abc import Callable
from typing import Any

log = logging.getLogger("llmgw.gateway")

_ROW_BYTES = 8
MORE = 1
"""One connection more or less is no reason to wait."""
LEFT_TO_OTHERS_S = 0.002
"""How long a connection is left to workers with fewer, for each that this one has more. An idle one takes it in a
twentieth of that; on a busy machine it may be long before it gets its turn."""
LEFT_MOST_S = 0.02
NO_MORE_S = 0.1
"""How long nothing is accepted after the system had no room for another connection."""
UNABLE_S = 0.1
"""How often a worker that can answer nothing looks whether it can again."""


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


class Acceptor:
    """Takes connections off a socket that several workers share: one in a turn of the loop, so that of a crowd each
    worker gets a share, and a busy one a smaller one. The loop's own servers take all that wait, which can leave one
    worker with every connection of a client and the other with none.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        balance: ConnectionBalance,
        open_now: Callable[[], int],
        able: Callable[[], bool],
    ) -> None:
        self._able = able
        self._listening = listening
        self._balance = balance
        self._open_now = open_now
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        if self._able():
            self._balance.report(self._open_now() + len(self._opening))
        self._loop.add_reader(self._listening, self._offered)

    def _offered(self) -> None:
        if not self._able() and self._balance.pause():
            # To refuse takes no time: it would draw nearly every connection to the one that answers none.
            self._loop.remove_reader(self._listening)
            self._resuming = self._loop.call_later(UNABLE_S, self._resume)
        elif surplus := self._balance.surplus(self._open_now() + len(self._opening)):
            self._loop.remove_reader(self._listening)
            self._resuming = self._loop.call_later(min(LEFT_MOST_S, surplus * LEFT_TO_OTHERS_S), self._left)
        else:
            self._accept()

    def _left(self) -> None:
        self._resume()
        self._accept()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client has left
        except OSError as error:
            log.error("no connection can be taken for %g s: %s", NO_MORE_S, error)
            self._loop.remove_reader(self._listening)
            self._resuming = self._loop.call_later(NO_MORE_S, self._resume)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[Any]) -> None:
        self._opening.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("a connection was not opened: %s", task.exception())

    def close(self) -> None:
        """Take no more."""
        self._balance.pause()
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
