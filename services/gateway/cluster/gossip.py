"""What the gateways of a cluster tell each other, so that limits and budgets are the cluster's.

What changed is told twice a second, at once where a limit or a budget is nearly used up; all of it once a second, or
as rarely as it takes for very many gateways with very many keys to have time for more than listening. Every report is
stored by the bus: only then, and when the others were heard after it, may this host count on them knowing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from libs.bus import Bus, Delivery
from libs.events import Contract, pattern_of
from libs.events.usage import (
    GatewayChanges,
    GatewayHoldings,
    GatewayRates,
    Holding,
    Holdings,
)
from libs.tasks import end
from services.gateway.core.admission.budgets import Spending
from services.gateway.core.admission.other_hosts import Acknowledgements, OtherHosts
from services.gateway.core.admission.rate_windows import Counts
from services.gateway.core.admission.shared_table import KEPT_S, Table
from services.gateway.core.usage.spool_marks import Marks

log = logging.getLogger("llmgw.gateway")

EVERY_S = 0.5
HURRIED_S = 0.02
"""Where something is nearly used up it is told at once, but no more often than this..."""
FEW_GATEWAYS = 8
"""...times as many as there are of so many gateways: all listen to each."""
WHOLE_EVERY_S = 1.0
HEARD_A_SECOND = 20_000
"""Names a gateway should have to listen to in what all others say as a whole."""
MAX_NAMES = 2_000
"""In one message."""
CATCH_UP_S = 3.0
IN_TOUCH_S = 4.0
"""All hosts are in touch that heard of each other so lately: it takes two of what all say every second."""
STOOD_STILL_S = 2.5
"""A worker whose loop did not turn for so long does not know what other hosts did meanwhile."""
MAX_ASKED = 10
"""Times in a row, as one may be frozen whom all wait for."""
LATELY_S = 3.0
SILENT_S = 10.0
"""A gateway not heard for so long has nothing in flight as far as the choice of an endpoint goes."""


class InFlight:
    """Requests in flight by replica, at the other gateways."""

    def __init__(self) -> None:
        self._total: dict[str, int] = {}
        self._by_gateway: dict[str, tuple[float, Mapping[str, int]]] = {}

    def others(self, replica_id: str) -> int:
        """As they last said."""
        return self._total.get(replica_id, 0)

    def heard(self, gateway_id: str, counts: Mapping[str, int], now: float) -> None:
        """A gateway's report replaces its last one."""
        for name, amount in self._by_gateway.pop(gateway_id, (0.0, {}))[1].items():
            left = self._total[name] - amount
            if left:
                self._total[name] = left
            else:
                del self._total[name]
        if counts:
            self._by_gateway[gateway_id] = now, dict(counts)
            for name, amount in counts.items():
                self._total[name] = self._total.get(name, 0) + amount

    def forget(self, now: float) -> None:
        """Drop what gateways said that were not heard for ``SILENT_S``; ``now`` in seconds."""
        for gateway_id in [g for g, (at, _) in self._by_gateway.items() if now - at > SILENT_S]:
            self.heard(gateway_id, {}, now)


class Gossip:
    """Requests and tokens by key and project, money by budget, in-flight requests by replica: here, and everywhere."""

    def __init__(self, bus: Bus, gateway_id: str, host: str, table: Table, marks: Marks) -> None:
        self._bus = bus
        self._gateway_id = gateway_id
        self._host = host
        self._table = table
        self._marks = marks
        self._life = time.time_ns() // 1_000_000
        self._number = -1
        self._other_hosts = OtherHosts(gateway_id, host)
        self.counts = Counts(table, self._other_hosts)
        self.spending = Spending(table, self._other_hosts, marks)
        self.in_flight = InFlight()
        """Only what the others have; our own is with the targets."""
        self.last_used: dict[str, datetime] = {}
        self._heard: dict[str, float] = {}
        """Gateways of other hosts, and when each was last heard."""
        self._spoke = asyncio.Event()
        """One of them was heard."""
        self._asks = False
        """Whether it matters that the others hear what is told next."""
        self._hurry = asyncio.Event()
        self._acknowledgements = Acknowledgements()
        self._still_at = 0.0
        """When this worker went on after it had stood still; 0: other hosts were heard since."""
        self._said_at = 0.0
        """When something was told last."""
        self._whole_at = 0.0
        """When everything is to be told next."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, own_in_flight: Callable[[], Mapping[str, int]], waiting: Mapping[str, int]) -> None:
        """Returns when this gateway has told that it is there, and heard what the others hold. ``waiting``: the live
        counts of requests that wait for a model."""
        self._tick()
        await self._bus.listen(GatewayRates, self._on_rates)
        await self._bus.listen(GatewayHoldings, self._on_holdings)
        await self._bus.listen(GatewayChanges, self._on_holdings)
        await self._catch_up()
        self._tasks = [
            self._bus.background("load", lambda: self._measure(own_in_flight, waiting)),
            self._bus.background("holdings", self._publish),
        ]

    async def stop(self) -> None:
        """Tell the others that this gateway leaves, and end."""
        await end(*self._tasks)
        if self._tasks:
            await self._tell_load({}, {})
            await self._tell_whole(leaving=True)

    def apart(self, now: float) -> int:
        """How many hosts may be using up the same limits without hearing of each other, this one among them: 1 while
        all of them are in touch."""
        return 1 if now - self._acknowledgements.at < IN_TOUCH_S else self._other_hosts.hosts

    @property
    def stood_still(self) -> bool:
        """Whether this worker was not running for a while and does not know yet what other hosts did meanwhile."""
        now = time.monotonic()
        if now - self._table.now > STOOD_STILL_S:
            self._still_at = now
        if self._still_at and (now - self._still_at > CATCH_UP_S or self._other_hosts.heard_since(self._still_at, now)):
            self._still_at = 0.0
        return self._still_at > 0.0

    def hurry(self) -> None:
        """A limit or a budget is nearly used up: other hosts are to hear of it before the next half second."""
        if self._other_hosts.hosts > 1:
            self._asks = True
            self._hurry.set()

    # hearing

    async def _catch_up(self) -> None:
        """Hear what the others said last, and what those that live say now: they tell everything to one who is new."""
        lately: set[str] = set()
        began = time.monotonic()

        async def earlier(delivery: Delivery) -> None:
            message = delivery.message
            assert isinstance(message, Holdings)
            age_s = (datetime.now(UTC) - delivery.time).total_seconds()
            if self._other_hosts.heard(message, began - max(0.0, age_s)) and age_s < LATELY_S:
                lately.add(message.gateway_id)

        patterns = [pattern_of(GatewayHoldings), pattern_of(GatewayChanges)]
        reading = await self._bus.follow("TELEMETRY", patterns, earlier, "last")
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await reading.caught_up.wait()
        except TimeoutError:
            log.warning("what other gateways said last cannot be read; they are heard from now on")
        finally:
            await reading.stop()
        await self._tell_whole()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                while any(self._heard.get(gateway_id, 0.0) < began for gateway_id in lately):
                    self._spoke.clear()
                    await self._spoke.wait()

    async def _on_holdings(self, message: Contract) -> None:
        assert isinstance(message, Holdings)
        now = time.monotonic()
        if self._other_hosts.heard(message, now):
            self.spending.heard(message)
            if message.gateway_id not in self._heard:
                self._whole_at = 0.0
                self._hurry.set()
            elif isinstance(message, GatewayChanges) and message.asks:
                self._hurry.set()
            self._heard[message.gateway_id] = now
            self._spoke.set()

    async def _on_rates(self, message: Contract) -> None:
        assert isinstance(message, GatewayRates)
        if message.gateway_id != self._gateway_id:
            self.in_flight.heard(message.gateway_id, message.in_flight, time.monotonic())

    # telling

    async def _measure(self, own_in_flight: Callable[[], Mapping[str, int]], waiting: Mapping[str, int]) -> None:
        while True:
            await self._tell_load(own_in_flight(), waiting)
            await asyncio.sleep(EVERY_S)
            self._tick()

    async def _tell_load(self, own_in_flight: Mapping[str, int], waiting: Mapping[str, int]) -> None:
        await self._bus.tell(
            GatewayRates(
                at=datetime.now(UTC),
                gateway_id=self._gateway_id,
                in_flight=dict(own_in_flight),
                last_used=dict(self.last_used),
                waiting=dict(waiting),
            )
        )

    def _tick(self) -> None:
        """What follows from time alone."""
        now = time.monotonic()
        if self._table.now and now - self._table.now > KEPT_S:
            # Others have given away what its requests had reserved. Its spool says how far they had come.
            log.error("this worker stood still for %d s, and is started anew", now - self._table.now)
            os.kill(os.getpid(), signal.SIGKILL)
        self._table.now = int(now)
        self.counts.sweep(now)
        self._other_hosts.forget(now)
        self.in_flight.forget(now)
        for gateway_id in [gateway for gateway, at in self._heard.items() if now - at > SILENT_S]:
            del self._heard[gateway_id]

    async def _publish(self) -> None:
        asked = 0
        while True:
            hurried, asks = self._hurry.is_set(), self._asks
            self._hurry.clear()
            self._asks = False
            if time.monotonic() >= self._whole_at:
                await self._tell_whole()
            elif self._other_hosts.hosts > 1:
                await self._tell_changes(hurried, asks)
            self._confirm()
            pause_s = min(EVERY_S, HURRIED_S * max(1.0, len(self._heard) / FEW_GATEWAYS))
            await asyncio.sleep(pause_s)
            self._confirm()
            asked = asked + 1 if asks and self._acknowledgements.waits else 0
            if 0 < asked < MAX_ASKED:
                self.hurry()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S - pause_s):
                    await self._hurry.wait()

    async def _tell_whole(self, leaving: bool = False) -> None:
        now = time.monotonic()
        budgets = self.spending.all()
        counted = self.counts.whole()
        names = len(budgets) + len(counted)
        self._whole_at = now + max(WHOLE_EVERY_S, names * (len(self._heard) + 1) / HEARD_A_SECOND)
        parts = list(_parts(counted, budgets))
        for part, (counts, holdings) in enumerate(parts):
            message = GatewayHoldings(**self._fields(counts, holdings), part=part, parts=len(parts), leaving=leaving)
            await self._told(message, now)

    async def _tell_changes(self, hurried: bool, asks: bool) -> None:
        now = time.monotonic()
        for counts, holdings in _parts(self.counts.changes(), self.spending.changes()):
            # Where nothing has changed it is said all the same that this gateway lives.
            if counts or holdings or hurried or now - self._said_at > WHOLE_EVERY_S - HURRIED_S:
                await self._told(GatewayChanges(**self._fields(counts, holdings), asks=asks), now)

    def _fields(self, counts: Counted, holdings: Mapping[str, Holding]) -> dict[str, Any]:
        self._number += 1
        return {
            "at": datetime.now(UTC),
            "gateway_id": self._gateway_id,
            "host": self._host,
            "life": self._life,
            "number": self._number,
            "epoch": self._marks.epoch,
            "requests": {name: requests for name, (requests, _) in counts.items()},
            "tokens": {name: tokens for name, (_, tokens) in counts.items() if tokens},
            "budgets": dict(holdings),
        }

    async def _told(self, message: Holdings, now: float) -> None:
        self._said_at = now
        if await self._bus.keep(message):
            self._acknowledgements.told(message.budgets, self.counts.said(message.requests))
        else:
            self._acknowledgements.unsure(message.budgets)

    def _confirm(self) -> None:
        confirmed = self._acknowledgements.confirmed(self._other_hosts, time.monotonic())
        if confirmed is not None:
            holdings, counts = confirmed
            self.spending.told(holdings)
            self.counts.heard(counts)


Counted = Mapping[str, tuple[int, int]]
"""Requests and tokens by name."""


def _parts(counts: Counted, holdings: Mapping[str, Holding]) -> Iterator[tuple[Counted, Mapping[str, Holding]]]:
    """Both, in messages that are not too long: one at least."""
    names = [*((name, True) for name in counts), *((name, False) for name in holdings)]
    for start in range(0, max(1, len(names)), MAX_NAMES):
        some = names[start : start + MAX_NAMES]
        yield (
            {name: counts[name] for name, is_count in some if is_count},
            {name: holdings[name] for name, is_count in some if not is_count},
        )
