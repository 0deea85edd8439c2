"""Reading a stream in order, for ever: through reconnects, server restarts and gaps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from .tasks import end
from .transport import BusAway, Misconfigured, RawMessage, ReaderLost, Start, Transport

log = logging.getLogger("llmgw.bus")

RETRY_S = 0.2


class Follower:
    """Hands every message of a stream (or of some of its subjects) to a handler, in order, none twice.

    When reading has to be opened again it goes on after the last message handled, or, if ``relist`` is set,
    from the last message of every subject again, calling ``relist(True)`` before and ``relist(False)`` after.
    A handler that raises ends the follower: state that missed an event must not be used.
    """

    def __init__(
        self,
        transport: Transport,
        stream: str,
        subjects: Sequence[str],
        handle: Callable[[RawMessage], Awaitable[None]],
        start: Start,
        relist: Callable[[bool], Awaitable[None]] | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self._transport = transport
        self._stream = stream
        self._subjects = tuple(subjects)
        self._handle = handle
        self._start = start
        self._relist = relist
        self._on_failure = on_failure
        self._moved = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.caught_up = asyncio.Event()
        """Set once everything that was there at the start has been handled; stays set."""
        self.position = int(start) if isinstance(start, int) else 0
        """Sequence of the last message handled."""

    def open(self) -> Follower:
        self._task = asyncio.create_task(self._run(), name=f"follow {self._stream}")
        return self

    async def reached(self, sequence: int, timeout_s: float = 15.0) -> None:
        """Wait until the message with this sequence has been handled. Raises TimeoutError."""
        if self.position >= sequence:
            return
        async with asyncio.timeout(timeout_s), self._moved:
            await self._moved.wait_for(lambda: self.position >= sequence)

    async def listed(self, stalled_s: float = 15.0) -> None:
        """Wait until everything that was there at the start has been handled, however much that is.

        Raises TimeoutError when nothing came for ``stalled_s``.
        """
        while not self.caught_up.is_set():
            before = self.position
            with suppress(TimeoutError):
                async with asyncio.timeout(stalled_s):
                    await self.caught_up.wait()
            if self.position == before and not self.caught_up.is_set():
                raise TimeoutError(f"{self._stream} could not be read: nothing came for {stalled_s:g} s")

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        while True:
            try:
                await self._read_on()
            except (ReaderLost, BusAway) as why:
                log.info("reading %s is opened again: %s", self._stream, why)
                await asyncio.sleep(RETRY_S)
            except Misconfigured as why:
                log.warning("%s cannot be read: %s", self._stream, why)
                await asyncio.sleep(1)
            except Exception:
                log.exception("a message of %s after %d could not be handled", self._stream, self.position)
                if self._on_failure is not None:
                    self._on_failure(f"following {self._stream} ended at sequence {self.position}")
                return

    async def _read_on(self) -> None:
        start: Start = self._start
        if self._relist is None and self.position > 0:
            start = self.position
        reader = await self._transport.read(self._stream, self._subjects, start)
        try:
            listing = self._relist is not None
            if listing and self._relist is not None:
                await self._relist(True)
            if reader.pending == 0:
                listing = await self._listed(listing)
            while True:
                message = await reader.next(5.0)
                if message is None:
                    continue
                await self._handle(message)
                self.position = max(self.position, message.sequence)
                if message.pending == 0 and (listing or not self.caught_up.is_set()):
                    listing = await self._listed(listing)
                async with self._moved:
                    self._moved.notify_all()
        finally:
            await reader.close()

    async def _listed(self, listing: bool) -> bool:
        if listing and self._relist is not None:
            await self._relist(False)
        self.caught_up.set()
        return False
