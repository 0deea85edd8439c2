"""Retention in streams with a bound, above all USAGE: what the ledger has leaves, of what it lacks it is warned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import Gauge

from libs.bus import Bus, Room

log = logging.getLogger("llmgw.accounting")

DURABLE = "accounting-ledger"
BOUNDED = ("USAGE", "COMMANDS", "PARKED")
EVERY_S = 10.0

HELD = Gauge("llmgw_stream_bytes", "Bytes in a stream that has a bound, seen by the accounting that leads.", ["stream"])
BOUND = Gauge("llmgw_stream_bound_bytes", "Bytes it holds at most.", ["stream"])


def droppable_before(room: Room, done: int) -> int:
    """Messages of USAGE before this sequence may leave; ``room.first`` when none needs to or none may.

    A stream over half its bound is brought down to a quarter, as if all messages were equally large. Nothing behind
    ``done`` leaves, up to which the ledger has everything. What stays can be entered again into a new ledger.
    """
    if room.bound <= 0 or room.bytes * 2 <= room.bound:
        return room.first
    surplus = (room.bytes - room.bound / 4) / room.bytes
    return max(room.first, min(room.first + int(surplus * (room.last - room.first + 1)), done))


class StreamRetention:
    """Measures the streams while this instance leads, and has USAGE drop what the ledger has."""

    def __init__(self, bus: Bus, leading: Callable[[], bool], entered: Callable[[], bool]) -> None:
        """``entered``: whether the ledger is known to have what was acknowledged as entered. One that was put back from
        a copy has not, and is to get it from the stream."""
        self._bus = bus
        self._leading = leading
        self._entered = entered
        self._warned: set[str] = set()

    async def run(self) -> None:
        """Look every EVERY_S seconds, for ever. Raises BusAway."""
        while True:
            if self._leading():
                await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Drop what may leave, then measure the streams and warn once of each over half full. Raises BusAway."""
        await self._clear()
        for stream in BOUNDED:
            room = await self._bus.room(stream)
            HELD.labels(stream).set(room.bytes)
            BOUND.labels(stream).set(room.bound)
            half = room.bytes * 2 > room.bound > 0
            if half and stream not in self._warned:
                log.warning(
                    "the stream %s holds %d of at most %d MB%s",
                    *(stream, room.bytes // 10**6, room.bound // 10**6),
                    ": usage the ledger does not have; when it is full gateways keep usage in their spools"
                    if stream == "USAGE"
                    else "",
                )
            self._warned = self._warned | {stream} if half else self._warned - {stream}

    async def _clear(self) -> None:
        room = await self._bus.room("USAGE")
        if room.bytes * 2 <= room.bound or not self._entered():
            return
        progress = await self._bus.progress(DURABLE)
        before = droppable_before(room, progress.done)
        if before > room.first:
            await self._bus.drop("USAGE", before)
            log.info("%d messages of USAGE that the ledger has left it, to make room", before - room.first)
