"""Requests that wait for a model on demand, until it has an engine.

The scheduler is told that somebody asks for the model, once for all who wait here and again while they do; how many
they are goes with the rates. A route that changes lets those look again whom it concerns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping

from libs.bus import Bus, BusError
from libs.events.commands import WakeModel
from libs.tasks import end
from services.gateway import metrics
from services.gateway.adapters.upstream import Abandoned
from services.gateway.cluster.views import Routes
from services.gateway.core import faults
from services.gateway.http.exchange import Exchange

log = logging.getLogger("llmgw.gateway")

WAKE_EVERY_S = 5.0
"""A wake is said again after so long, at most: the scheduler may have led anew, or taken the last one for old."""


class Waiter:
    """One request. It stands where the connection to an engine will: a client that leaves ends it at once."""

    __slots__ = ("_future", "models")

    def __init__(self, models: Collection[str]) -> None:
        self.models = models
        """Whose routes it looks at."""
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def changed(self) -> None:
        """Returns when one of them has changed. Raises Abandoned, or Fault when this gateway stops."""
        await self._future

    def look(self) -> None:
        """Let ``changed`` return."""
        if not self._future.done():
            self._future.set_result(None)

    def abort(self) -> None:
        """The client left."""
        self.end(Abandoned())

    def end(self, why: Exception) -> None:
        """Let ``changed`` raise ``why``."""
        if not self._future.done():
            self._future.set_exception(why)


class WakeQueue:
    """All of them at one gateway: at most ``most``, each for at most ``wait_s`` since it arrived."""

    def __init__(self, bus: Bus, routes: Routes, wait_s: float, most: int) -> None:
        self._bus = bus
        self._wait_s = wait_s
        self._most = most
        self._waiters: set[Waiter] = set()
        self._counts: dict[str, int] = {}
        self._waking: dict[str, asyncio.Task[None]] = {}
        self._ending = False
        routes.on_change(self._on_change)

    @property
    def counts(self) -> Mapping[str, int]:
        """Model to how many wait for it."""
        return self._counts

    async def change(self, exchange: Exchange, model: str, models: Collection[str]) -> None:
        """Wake ``model`` and wait until the route of one of ``models`` has changed.

        Raises Fault (503) when it took too long, too many wait, or this gateway stops; Abandoned.
        """
        if exchange.gone:
            raise Abandoned
        if self._ending:
            raise faults.stopping()
        if len(self._waiters) >= self._most:
            raise faults.too_many_waiting(model, self._most)
        self.wake(model)
        waiter = Waiter(models)
        self._waiters.add(waiter)
        self._counts[model] = self._counts.get(model, 0) + 1
        exchange.connection = waiter
        try:
            async with asyncio.timeout(self._wait_s - (time.perf_counter() - exchange.started)):
                await waiter.changed()
        except TimeoutError:
            raise faults.not_started(model, self._wait_s) from None
        finally:
            exchange.connection = None
            self._waiters.discard(waiter)
            left = self._counts[model] - 1
            if left:
                self._counts[model] = left
            else:
                del self._counts[model]

    def _on_change(self, model: str) -> None:
        for waiter in self._waiters:
            if model in waiter.models:
                waiter.look()

    def wake(self, model: str) -> None:
        """Have the scheduler told that somebody asks for it; nothing waits for that."""
        if model not in self._waking and not self._ending:
            self._waking[model] = self._bus.background(f"waking {model}", lambda: self._wake(model))

    async def _wake(self, model: str) -> None:
        complained = False
        try:
            while True:
                outcome, problem = await self._say(model)
                metrics.WAKES.labels(model, outcome).inc()
                if problem and not complained:
                    complained = True
                    log.warning("waking %s: %s", model, problem)
                # Not before that another may be said, whoever waits then.
                await asyncio.sleep(WAKE_EVERY_S)
                if self._ending or model not in self._counts:
                    return
        finally:
            del self._waking[model]

    async def _say(self, model: str) -> tuple[str, str]:
        """What came of it in a word, and what was wrong, if anything was."""
        try:
            outcome = await self._bus.command(WakeModel(model=model))
        except BusError as error:
            return "no outcome", str(error)
        return outcome.status, outcome.message if outcome.status in ("refused", "failed") else ""

    def end(self) -> None:
        """This gateway stops: who waits is told so."""
        self._ending = True
        for waiter in self._waiters:
            waiter.end(faults.stopping())

    async def stop(self) -> None:
        """End all waiting and all waking."""
        self.end()
        await end(*self._waking.values())
