"""What the gateways of a cluster tell each other twice a second, so that limits and load are the cluster's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from libs.bus import Bus, Delivery
from libs.events import Contract, pattern_of
from libs.events.usage import GatewayRates

from .core.budgets import Spending
from .core.windows import SILENT_S, Counts

log = logging.getLogger("llmgw.gateway")

EVERY_S = 0.5
CATCH_UP_S = 2.0
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
        await self._catch_up()
        self._task = self._bus.background("rates", lambda: self._publish(own_in_flight, waiting))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            # Our requests stay in the others' windows for SILENT_S; what is in flight here is nothing any more.
            await self._tell({}, {})

    async def _catch_up(self) -> None:
        """Hear what the others said last: limits and budgets hold from the first request on."""
        reading = await self._bus.follow("TELEMETRY", [pattern_of(GatewayRates)], self._on_earlier, "last")
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await reading.caught_up.wait()
        except TimeoutError:
            log.warning("what other gateways said last cannot be read; they are heard from now on")
        finally:
            await reading.stop()

    async def _on_earlier(self, delivery: Delivery) -> None:
        message = delivery.message
        assert isinstance(message, GatewayRates)
        if message.gateway_id in (self._gateway_id, *self._heard):
            return
        if (datetime.now(UTC) - delivery.time).total_seconds() < SILENT_S:
            await self._on_rates(message)
        else:
            self.spending.heard(message.gateway_id, message.budgets)
            self.spending.silent(message.gateway_id)

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
