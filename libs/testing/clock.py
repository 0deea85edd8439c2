"""A clock that stands until it is moved."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Starts at noon on 2026-01-01 UTC. ``advance`` moves it and wakes whoever's sleep is over."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._sleeping: list[tuple[float, asyncio.Event]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        """Seconds it was moved by so far."""
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was moved so far, at once for 0 or less."""
        if seconds <= 0:
            return
        woken = asyncio.Event()
        self._sleeping.append((self._elapsed_s + seconds, woken))
        await woken.wait()

    def advance(self, seconds: float) -> None:
        """Move it, and wake whoever's sleep is over, in the order in which they went to sleep."""
        self._elapsed_s += seconds
        for due, woken in self._sleeping:
            if due <= self._elapsed_s:
                woken.set()
        self._sleeping = [entry for entry in self._sleeping if entry[0] > self._elapsed_s]
