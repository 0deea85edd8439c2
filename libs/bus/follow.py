"""Reading a stream in order, for ever: through reconnects, server restarts and gaps.

A sequence means something within one history of its stream only. A store may be wiped, or put back from a copy: then
other messages stand at the same sequences. Whoever reads on after a gap therefore looks first whether what it read
last is still there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from libs.tasks import end

from .metrics import WENT_BACK
from .transport import (
    START_LAST,
    BusAway,
    Extent,
    Misconfigured,
    RawMessage,
    Reader,
    ReaderLost,
    Start,
    Transport,
    WentBack,
)

log = logging.getLogger("llmgw.bus")

RETRY_S = 0.2
LOOK_AGAIN_S = 5.0
"""A stream that seems to have gone back is looked at once more after so long: a leader that was cut off from its
replicas is known by then."""


class Place(NamedTuple):
    """How far a stream was read."""

    epoch: str
    """Of the stream; empty: not known."""
    position: int
    mark: str
    """Of the message there; empty: not known."""


async def gone_back(transport: Transport, stream: str, place: Place, extent: Extent) -> str:
    """Why a stream, as it is now, is not the one that was read; empty: it is. Raises BusAway."""
    if place.epoch and extent.epoch != place.epoch:
        return f"{stream} was made anew on {extent.epoch}"
    if extent.last < place.position:
        return f"{stream} was put back from a copy: it ends at {extent.last}, and {place.position} was read"
    if place.position and place.mark:
        stored = await transport.message(stream, place.position)
        # One that is gone was too old, or one too many of its subject.
        if stored is not None and stored.mark != place.mark:
            return f"{stream} was put back from a copy: another message stands at {place.position}"
    return ""


class Follower:
    """Hands every message of a stream (or of some of its subjects) to a handler, in order, none twice.

    When reading has to be opened again it goes on after the last message handled, or, if ``relist`` is set,
    from the last message of every subject again, calling ``relist(True)`` before and ``relist(False)`` after.
    A handler that raises ends the follower: state that missed an event must not be used.

    Where the stream went back, what was handled is void. ``begin_anew`` is told so, with the reason, and the follower
    ends; without it the follower begins again as it did at first.
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
        begin_anew: Callable[[str], None] | None = None,
    ) -> None:
        self._transport = transport
        self._stream = stream
        self._subjects = tuple(subjects)
        self._handle = handle
        self._start = start
        self._relist = relist
        self._on_failure = on_failure
        self._begin_anew = begin_anew
        self._epoch = ""
        self._mark = ""
        """Of the last message handled."""
        self._moved = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.caught_up = asyncio.Event()
        """Set once everything that was there at the start has been handled; stays set unless the stream goes back."""
        self.position = int(start) if isinstance(start, int) else 0
        """Sequence of the last message handled."""
        self._reader: Reader | None = None
        """Open, and of the stream that was read before."""

    @property
    def sure(self) -> bool:
        """Whether it reads, and what it read stands in the stream: not so from a reconnect until that was looked at."""
        return self._reader is not None and not self._reader.lost

    def open(self) -> Follower:
        """Begin to read."""
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
        """End; the handler is not called any more."""
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
            except WentBack as why:
                WENT_BACK.labels(self._stream).inc()
                log.error("%s; what was read of it is void", why)
                self.caught_up.clear()
                self.position, self._epoch, self._mark = 0, "", ""
                if self._begin_anew is not None:
                    self._begin_anew(str(why))
                    return
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
            # Once the reader is open: were the stream another one afterwards, the reader would be lost with it.
            if self._relist is None:
                await self._same_history()
            self._reader = reader
            await self._hand_on(reader)
        finally:
            self._reader = None
            await reader.close()

    async def _hand_on(self, reader: Reader) -> None:
        listing = self._relist is not None
        if listing and self._relist is not None:
            await self._relist(True)
        newest = await self._newest()
        if reader.pending == 0 and newest == 0:
            listing = await self._listed(listing)
        while True:
            message = await reader.next(5.0)
            if message is None:
                continue
            await self._handle(message)
            if message.sequence > self.position:
                self.position, self._mark = message.sequence, message.mark
            if message.pending == 0 and message.sequence >= newest and (listing or not self.caught_up.is_set()):
                listing = await self._listed(listing)
            async with self._moved:
                self._moved.notify_all()

    async def _newest(self) -> int:
        """Which message must have been seen before a list of last messages is whole; 0: none.

        The replica that is read may be behind the others: what it lists then is not what there is.
        """
        if self._start != START_LAST or self._subjects != (f"$KV.{self._stream.removeprefix('KV_')}.>",):
            return 0
        last = await self._transport.last(self._stream, self._subjects[0])
        return last.sequence if last is not None else 0

    async def _same_history(self) -> None:
        """Raises WentBack, BusAway."""
        extent = await self._transport.extent(self._stream)
        place = Place(self._epoch or extent.epoch, self.position, self._mark)
        why = await gone_back(self._transport, self._stream, place, extent)
        if why and extent.replicas > 1:
            await asyncio.sleep(LOOK_AGAIN_S)
            extent = await self._transport.extent(self._stream)
            why = await gone_back(self._transport, self._stream, place, extent)
        if why:
            raise WentBack(why)
        self._epoch = place.epoch
        if self.position and not self._mark:
            stored = await self._transport.message(self._stream, self.position)
            self._mark = stored.mark if stored is not None else ""

    async def _listed(self, listing: bool) -> bool:
        if listing and self._relist is not None:
            await self._relist(False)
        self.caught_up.set()
        return False
