"""Taking connections off the socket the workers share."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from .connection_balance import ConnectionBalance

log = logging.getLogger("llmgw.gateway")

LEFT_TO_OTHERS_S = 0.002
"""How long a connection is left to workers with fewer, for each that this one has more. An idle one takes it in a
twentieth of that; on a busy machine it may be long before it gets its turn."""
LEFT_MOST_S = 0.02
NO_MORE_S = 0.1
"""How long nothing is accepted after the system had no room for another connection."""
UNABLE_S = 0.1
"""How often a worker that can answer nothing looks whether it can again."""


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
