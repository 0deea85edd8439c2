"""From the stream USAGE into the ledger: the leader's work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
from prometheus_client import Counter, Histogram

from libs.bus import Again, Bus, BusAway, Delivery, Park, Worker
from libs.events.policy import VerdictBatch
from libs.events.usage import UsageBatch

from .adapters.postgres import Committed, Entry, Ledger, LedgerChanged, PostgresAway, PostgresRefused
from .core.origin import Origin, Reached, Stream, begin
from .core.prices import Prices
from .core.rows import BadFact, RequestRow, VerdictRow, months_back, request_rows, verdict_rows
from .core.spending import Complete, Sum, ended_at, published, sums_of
from .core.watermark import Watermark
from .projections import SpendPublisher
from .replay import replay

log = logging.getLogger("llmgw.accounting")

DURABLE = "accounting-ledger"
MESSAGES = 256
"""Messages in one transaction at most; a gateway's message holds many requests."""
LOOK_EVERY_S = 0.25
"""How soon a new leader begins, and an old one stops."""
ASK_EVERY_S = 2.0
"""How often PostgreSQL is asked whether it is there."""

TIDY_EVERY_S = 3600.0
"""How often it is looked for what is not kept any more."""
TIDY_AGAIN_S = 600.0
"""After PostgreSQL could not: somebody may be reading what is to go."""
DROPPED_AT_ONCE = 5_000
"""Sums dropped in one transaction: whoever commits waits for it."""

WARNED_FOR = timedelta(days=7)
ROWS = Counter("llmgw_ledger_requests_total", "Requests taken from the stream, by what became of them.", ["outcome"])
COMMIT_SECONDS = Histogram(
    "llmgw_ledger_commit_seconds",
    "One transaction of the ledger.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30),
)


class LedgerWriter:
    """Takes usage and verdicts into the ledger while this instance leads and PostgreSQL is there.

    Where it is not, messages wait in their stream. A batch that was begun is tried again in place. Messages that come
    again, because a leader died or a connection broke, enter after newer ones; until they have, nothing is published:
    the sequence that is, is one up to which the ledger is complete.
    """

    def __init__(
        self,
        bus: Bus,
        ledger: Ledger,
        spend: SpendPublisher,
        leading: Callable[[], bool],
        prices: Callable[[], Prices],
        keep_months: int,
    ) -> None:
        """``keep_months``: whole months of which every request is kept, beside this one; 0: all."""
        self._keep_months = keep_months
        self._bus = bus
        self._ledger = ledger
        self._spend = spend
        self._leading = leading
        self._prices = prices
        self._worker: Worker | None = None
        self._asked = 0.0
        self._watermark = Watermark(0, 0)
        self._origin: Origin | None = None
        self._counting = ""
        self.compared = False
        """Whether this instance knows how ledger and bus stand to each other, as their writer."""
        self._reached = 0
        """The highest sequence this instance knows to be in the ledger."""
        self._withheld = True
        """Something in the ledger is not published yet: nobody looked, or something before it is missing."""
        self._entering = asyncio.Lock()
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
        if time.monotonic() - self._asked >= ASK_EVERY_S or (self._leading() and self._worker is None):
            await self._ask()
        if self._worker is not None and not self.away:
            try:
                await self._publish()
            except (BusAway, PostgresAway, TimeoutError) as why:
                log.info("spend waits: %s", why)

    async def _ask(self) -> None:
        self._asked = time.monotonic()
        try:
            await self._ledger.ping()
            self._is_there()
            if self._worker is None:
                self._origin, _ = await self._ledger.origin()
            elif not await self._still_fits():
                await self._stop()
            if self._leading() and self._worker is None:
                await self._begin()
                self._worker = await self._bus.work(DURABLE, self.write, batch=MESSAGES)
                log.info("the ledger is written here")
        except PostgresAway as why:
            self._is_away(why)
        except (BusAway, TimeoutError) as why:
            log.info("the ledger is not written yet: %s", why)

    async def _begin(self) -> None:
        """Compare ledger and stream, and bring the ledger to where the stream says it is.

        Raises BusAway, PostgresAway, TimeoutError.
        """
        known, holds_requests = await self._ledger.origin()
        progress = await self._bus.progress(DURABLE)
        beginning = begin(known, holds_requests, await self._stream(known, progress.done), datetime.now(UTC))
        self.compared = True
        if beginning.after is not None:
            self._counting = (
                f"the ledger is counted anew from messages {beginning.after + 1} to {progress.done} of USAGE: until "
                "that is done, usage and budgets lack some of it"
            )
            await self._replay(known, beginning.origin, beginning.after, progress.done)
            self._counting = ""
        elif beginning.origin is not known:
            await self._ledger.begin(beginning.origin)
        self._origin, _ = await self._ledger.origin()
        if self._origin is not None and self._origin != known and self._origin.why:
            log.error("%s", self._origin.why)
        assert self._origin is not None
        self._reached = self._origin.reached
        self._watermark = Watermark(progress.done, progress.handed_out)

    async def _stream(self, known: Origin | None, done: int) -> Stream:
        extent = await self._bus.transport.extent("USAGE")
        there = await self._bus.transport.message("USAGE", known.reached) if known is not None and known.mark else None
        mark = there.mark if there is not None else None
        return Stream(created=extent.epoch, last=extent.last, done=done, mark=mark)

    async def _still_fits(self) -> bool:
        """Whether ledger and stream are those that were compared when this instance began."""
        since = self._reached
        known, _ = await self._ledger.origin()
        if known is None or self._origin is None or known.epoch != self._origin.epoch or known.reached < since:
            return False
        return begin(known, True, await self._stream(known, 0), datetime.now(UTC)).origin is known

    async def _replay(self, known: Origin | None, origin: Origin, after: int, until: int) -> None:
        if known is None:
            # What would look like a ledger of an earlier version, were it left half way.
            await self._ledger.begin(msgspec.structs.replace(origin, complete=after, reached=after))
        added = await replay(self._bus, after, until, self._enter_once_more)
        # Also where nothing was missing: an earlier try may have come no further than here.
        await self._spend.take_over()
        await self._ledger.at_least(sums_of(self._spend.published))
        if known is not None and origin != known and (added or origin.stream != known.stream):
            await self._ledger.begin(origin)
        await self._ledger.reach(until)

    async def _enter_once_more(self, deliveries: list[Delivery]) -> int:
        try:
            return (await self._ledger.commit(self._entry(deliveries), datetime.now(UTC))).added
        except (Park, PostgresRefused) as why:
            if len(deliveries) == 1:
                log.error("message %d of USAGE stays out of the ledger: %s", deliveries[0].sequence, why)
                return 0
            return sum([await self._enter_once_more([one]) for one in deliveries])

    @property
    def whole(self) -> bool:
        """Whether the ledger had all that was acknowledged as entered when this instance began to write it."""
        return self._worker is not None

    @property
    def warnings(self) -> list[str]:
        """What happened to ledger or bus that those who run them should know of, for a week."""
        sentences, origin = [self._counting] if self._counting else [], self._origin
        if origin is not None and origin.why and datetime.now(UTC) - origin.begun_at < WARNED_FOR:
            sentences.append(origin.why)
        return sentences

    async def _publish(self) -> None:
        """Have the bucket say what the ledger says, where commits do not see to it themselves.

        Raises BusAway, PostgresAway, TimeoutError.
        """
        if not self._spend.owned:
            self._withheld = True
            await self._spend.take_over()
        if not self._withheld and not self._spend.new:
            return
        progress = await self._bus.progress(DURABLE)
        async with AsyncExitStack() as reading:
            async with self._entering:
                # What is missing may have been dealt with elsewhere, or be parked: the stream knows.
                self._watermark = self._watermark.at_least(progress.done)
                if not self._watermark.complete:
                    return
                now, complete = datetime.now(UTC), self._complete
                if not self._withheld:
                    new = set(self._spend.new)
                    self._say(await self._ledger.sums(now, new), complete, now)
                    self._spend.new -= new
                    return
                whole = await reading.enter_async_context(self._ledger.whole(now))
                # Commits from here on are not in what is read, and publish their own.
                self._withheld = False
                self._spend.new = set()
            try:
                async with aclosing(whole.rising(lambda one: self._spend.counted(one, complete.epoch))) as parts:
                    async for sums in parts:
                        if not self._leading():
                            return
                        self._say(sums, complete, now)
            except BaseException:
                self._withheld = True
                raise

    @property
    def _complete(self) -> Complete:
        assert self._origin is not None
        return Complete(self._watermark.floor, self._origin.epoch)

    def _say(self, sums: Sequence[Sum], complete: Complete, at: datetime) -> None:
        self._spend.add(published(sums, at, complete), at)

    async def tidy(self) -> None:
        """Drop sums of periods that ended long ago, and single requests of months that are not kept; for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._worker is None or self.away:
                continue
            now = datetime.now(UTC)
            try:
                if await self._ledger.drop(ended_at(now), DROPPED_AT_ONCE) == DROPPED_AT_ONCE:
                    continue
                before = months_back(now, self._keep_months)
                month = await self._ledger.roll_up(before) if self._keep_months else None
            except PostgresAway as why:
                log.warning("the ledger is tidied up later: %s", why)
                await asyncio.sleep(TIDY_AGAIN_S)
                continue
            if month is None:
                await asyncio.sleep(TIDY_EVERY_S)
            else:
                log.info("requests of %s are kept as sums by hour, key and model from now on", f"{month:%Y-%m}")

    async def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        self._spend.let_go()
        self._withheld = True
        self.compared, self._counting = False, ""

    async def write(self, deliveries: list[Delivery]) -> None:
        """One batch, in one transaction. Returns when it is in the ledger, whether by this call or an earlier one.

        Raises Again where another instance leads or the ledger was exchanged, Park for what PostgreSQL will never take.
        """
        entry = self._entry(deliveries)
        sequences = [delivery.sequence for delivery in deliveries]
        last = max(deliveries, key=lambda delivery: delivery.sequence)
        while True:
            if await self._entered(entry, sequences, last.raw.mark):
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _entered(self, entry: Entry, sequences: list[int], mark: str) -> bool:
        """Try once; ``mark`` is the last message's. Raises Again, Park."""
        if not self._leading():
            raise Again("another instance writes the ledger")
        async with self._entering:
            order = self._watermark.after(sequences)
            assert self._origin is not None
            reached = Reached(self._origin.epoch, self._reached, order.floor, max(sequences), mark)
            now = datetime.now(UTC)
            try:
                started = time.monotonic()
                committed = await self._ledger.commit(replace(entry, reached=reached), now)
            except PostgresRefused as why:
                raise Park(f"PostgreSQL does not take it: {why}") from None
            except LedgerChanged as why:
                self._asked = 0.0
                raise Again(str(why)) from None
            except PostgresAway as why:
                self._is_away(why)
                return False
            # It is in the ledger: nothing that fails from here on may have it entered again.
            COMMIT_SECONDS.observe(time.monotonic() - started)
            self._watermark = order
            self._reached = max(self._reached, reached.sequence)
            self._is_there()
            self._count(entry, committed)
            if not order.complete:
                self._withheld = True
            elif not self._withheld:
                self._say(committed.sums, self._complete, now)
        return True

    def _entry(self, deliveries: list[Delivery]) -> Entry:
        prices = self._prices()
        requests: list[RequestRow] = []
        verdicts: list[VerdictRow] = []
        try:
            for delivery in sorted(deliveries, key=lambda d: d.sequence):
                match delivery.message:
                    case UsageBatch() as batch:
                        requests += request_rows(batch, prices)
                    case VerdictBatch() as batch:
                        verdicts += verdict_rows(batch, delivery.time, delivery.sequence)
                    case _:
                        raise Park(f"{delivery.tag} does not belong into the ledger")
        except BadFact as why:
            raise Park(str(why)) from None
        return Entry(requests, verdicts)

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
