"""What the gateways of a cluster tell each other twice a second, so that limits and load are the cluster's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from libs.bus import Bus
from libs.events import Contract
from libs.events.usage import GatewayRates

from .core.budgets import Spending
from .core.windows import SILENT_S, Counts

EVERY_S = 0.5
HURRIED_S = 0.02
"""A gateway where a limit comes near says so at once, but no more often than this."""


class Rates:
    """Requests and tokens by key and project, money by budget, in-flight requests by replica: here, and everywhere."""

    def __init__(self, bus: Bus, gateway_id: str) -> None:
        self._bus = bus
        self._gateway_id = gateway_id
        self.requests = Counts()
        self.tokens = Counts()
        self.in_flight = Counts()
        """Only what the others have; our own is with the targets."""
        self.spending = Spending(gateway_id)
        self.last_used: dict[str, datetime] = {}
        self._heard: dict[str, float] = {}
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, own_in_flight: Callable[[], Mapping[str, int]], waiting: Mapping[str, int]) -> None:
        """``waiting``: the live counts of requests that wait for a model."""
        await self._bus.listen(GatewayRates, self._on_rates)
        self._task = asyncio.create_task(self._publish(own_in_flight, waiting))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            # Our requests stay in the others' windows for SILENT_S; what is in flight here is nothing any more.
            await self._tell({}, {})

    def hurry(self) -> None:
        """Do not wait for the next half second."""
        self._hurry.set()

    async def _publish(self, own_in_flight: Callable[[], Mapping[str, int]], waiting: Mapping[str, int]) -> None:
        while True:
            await self._tell(own_in_flight(), waiting)
            await asyncio.sleep(HURRIED_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S - HURRIED_S):
                    await self._hurry.wait()
            self._hurry.clear()
            self._forget_silent()

    async def _tell(self, own_in_flight: Mapping[str, int], waiting: Mapping[str, int]) -> None:
        now, at = time.monotonic(), datetime.now(UTC)
        await self._bus.tell(
            GatewayRates(
                at=at,
                gateway_id=self._gateway_id,
                requests=self.requests.local(now),
                tokens=self.tokens.local(now),
                in_flight=dict(own_in_flight),
                last_used=dict(self.last_used),
                waiting=dict(waiting),
                budgets=self.spending.held(at),
            )
        )

    async def _on_rates(self, message: Contract) -> None:
        assert isinstance(message, GatewayRates)
        if message.gateway_id == self._gateway_id:
            return
        self._heard[message.gateway_id] = time.monotonic()
        self.requests.heard(message.gateway_id, message.requests)
        self.tokens.heard(message.gateway_id, message.tokens)
        self.in_flight.heard(message.gateway_id, message.in_flight)
        self.spending.heard(message.gateway_id, message.budgets)

    def _forget_silent(self) -> None:
        since = time.monotonic() - SILENT_S
        for gateway_id in [g for g, at in self._heard.items() if at < since]:
            del self._heard[gateway_id]
            for counts in (self.requests, self.tokens, self.in_flight):
                counts.heard(gateway_id, {})
            self.spending.silent(gateway_id)
