"""Time, handed in where code must be tested without waiting for it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, UTC."""

    def monotonic(self) -> float:
        """Seconds that only go forward, for durations."""

    async def sleep(self, seconds: float) -> None:
        """Wait; not at all for 0 or less."""


class SystemClock:
    """The machine's own."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def utc_now() -> datetime:
    return datetime.now(UTC)
