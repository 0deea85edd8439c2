"""From the stream USAGE into the ledger: the leader's work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from prometheus_client import Counter, Histogram

from libs.bus import Again, Bus, BusAway, Delivery, Park, Worker
from libs.events.policy import VerdictBatch
from libs.events.usage import UsageBatch

from .adapters.postgres import Committed, Entry, Ledger, PostgresAway, PostgresRefused
from .core.prices import Prices
from .core.rows import BadFact, RequestRow, VerdictRow, request_rows, verdict_rows
from .projections import SpendPublisher

log = logging.getLogger("llmgw.accounting")

DURABLE = "accounting-ledger"
MESSAGES = 256
"""Messages in one transaction at most; a gateway's message holds many requests."""
LOOK_EVERY_S = 0.25
"""How soon a new leader begins, and an old one stops."""
ASK_EVERY_S = 2.0
"""How often PostgreSQL is asked whether it is there."""

ROWS = Counter("llmgw_ledger_requests_total", "Requests taken from the stream, by what became of them.", ["outcome"])
COMMIT_SECONDS = Histogram(
    "llmgw_ledger_commit_seconds",
    "One transaction of the ledger.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)


class LedgerWriter:
    """Takes usage and verdicts into the ledger while this instance leads and PostgreSQL is there.

    Where it is not, messages wait in their stream. A batch that was begun is tried again in place, so that
    batches enter in the order of the stream and a gateway's watermark never runs ahead of its requests.
    """

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        spend: SpendPublisher,
        leading: Callable[[], bool],
        prices: Callable[[], Prices],
    ) -> None:
        self._bus = bus
        self._ledger = ledger
        self._spend = spend
        self._leading = leading
        self._prices = prices
        self._worker: Worker | None = None
        self._asked = 0.0
        self.away = "PostgreSQL was not reached yet"
        """Why nothing can be written; empty: it can."""

    async def run(self) -> None:
        """Work, for ever."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await self._stop()

    async def _look(self) -> None:
        if self._worker is not None and not self._leading():
            await self._stop()
        if time.monotonic() - self._asked < ASK_EVERY_S and not (self._leading() and self._worker is None):
            return
        self._asked = time.monotonic()
        try:
            await self._ledger.ping()
            self._is_there()
            if self._leading():
                await self._begin()
        except PostgresAway as why:
            self._is_away(why)
        except (BusAway, TimeoutError) as why:
            log.info("the ledger is not written yet: %s", why)

    async def _begin(self) -> None:
        if self._worker is None or self._spend.overtaken:
            await self._spend.take()
            self._spend.add(await self._ledger.spend(datetime.now(UTC)))
        if self._worker is None:
            self._worker = await self._bus.work(DURABLE, self.write, batch=MESSAGES)
            log.info("the ledger is written here")

    async def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        self._spend.forget()

    async def write(self, deliveries: list[Delivery]) -> None:
        """One batch, in one transaction. Returns when it is in the ledger, whether by this call or an earlier one."""
        entry = self._entry(deliveries)
        while True:
            if not self._leading():
                raise Again("another instance writes the ledger")
            try:
                started = time.monotonic()
                committed = await self._ledger.commit(entry, datetime.now(UTC))
                COMMIT_SECONDS.observe(time.monotonic() - started)
                break
            except PostgresRefused as why:
                raise Park(f"PostgreSQL does not take it: {why}") from None
            except PostgresAway as why:
                self._is_away(why)
                await asyncio.sleep(LOOK_EVERY_S)
        self._is_there()
        self._count(entry, committed)
        self._spend.add(committed.spend)

    def _entry(self, deliveries: list[Delivery]) -> Entry:
        prices = self._prices()
        requests: list[RequestRow] = []
        verdicts: list[VerdictRow] = []
        watermarks: dict[str, int] = {}
        try:
            for delivery in sorted(deliveries, key=lambda d: d.sequence):
                match delivery.message:
                    case UsageBatch() as batch:
                        requests += request_rows(batch, prices)
                        watermarks[batch.gateway_id] = max(batch.offset, watermarks.get(batch.gateway_id, 0))
                    case VerdictBatch() as batch:
                        verdicts += verdict_rows(batch, delivery.time, delivery.sequence)
                    case _:
                        raise Park(f"{delivery.tag} does not belong into the ledger")
        except BadFact as why:
            raise Park(str(why)) from None
        return Entry(requests, verdicts, watermarks)

    def _count(self, entry: Entry, committed: Committed) -> None:
        ROWS.labels("added").inc(committed.added)
        ROWS.labels("known already").inc(len(entry.requests) - committed.added)

    def _is_away(self, why: PostgresAway) -> None:
        if not self.away:
            log.warning("PostgreSQL is away, usage waits in its stream: %s", why)
        self.away = f"PostgreSQL is away: {why}"

    def _is_there(self) -> None:
        if self.away:
            log.info("PostgreSQL is there")
        self.away = ""
