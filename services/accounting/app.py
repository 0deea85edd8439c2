"""Accounting: who may spend what, what was spent, and the proof."""

from __future__ import annotations

import asyncio

from libs.bus import Authority, Bus, OwnedView, Snapshot
from libs.events import Event
from libs.events.views import KeyView, PriceView, Spend
from libs.tasks import end

from . import core
from .adapters.postgres import Ledger
from .core.decide import decide, react
from .core.state import OWNS, SUBJECTS, State, evolve
from .ledger import LedgerWriter
from .projections import Keys, PriceList, SpendPublisher
from .questions import Questions
from .settings import AccountingSettings
from .stream_retention import StreamRetention


class Accounting:
    """The service. It decides with the log alone; PostgreSQL holds only what was spent."""

    def __init__(self, settings: AccountingSettings, bus: Bus) -> None:
        self._bus = bus
        self._ledger = Ledger(settings.dsn())
        self._keys = Keys(OwnedView(bus.view("keys", KeyView)))
        self._price_list = PriceList(OwnedView(bus.view("prices", PriceView)))
        self._spend = SpendPublisher(
            OwnedView(bus.view("spend", Spend)),
            charges=lambda account: self.authority.state.charges(account),
            election=lambda: self.authority.state.elected_at,
        )
        self.authority: Authority[State] = Authority(
            bus,
            "accounting",
            settings.instance,
            subjects=SUBJECTS,
            initial=State(),
            evolve=self._fold,
            decide=decide,
            react=react,
            on_change=self._refresh,
            questions=Questions(lambda: self.authority.state, self._ledger).handlers,
            problems=lambda: [*self.not_ready(), *self._writer.warnings],
            owns=("accounting", *OWNS),
            snapshot=Snapshot(settings.data_dir / "snapshot.json", State, core),
        )
        self._writer = LedgerWriter(
            bus,
            self._ledger,
            self._spend,
            lambda: self.authority.leading,
            lambda: self.authority.state.prices,
            settings.keep_requests_months,
        )
        self._retention = StreamRetention(bus, lambda: self.authority.leading, lambda: self._writer.whole)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.authority.start()
        self._tasks = [
            self._bus.background("the ledger's writer", self._writer.run),
            self._bus.background("the ledger's tidying", self._writer.tidy),
            self._bus.background("the publisher of spend", self._spend.run),
            self._bus.background("retention of streams", self._retention.run),
        ]

    def _fold(self, state: State, event: Event, position: int) -> State:
        self._keys.note(state, event)
        self._price_list.note(event)
        self._spend.note(event)
        return evolve(state, event, position)

    async def _refresh(self, state: State, position: int) -> None:
        await self._keys.refresh(state, position)
        await self._price_list.refresh(state)

    async def stop(self) -> None:
        await end(*self._tasks)
        await self.authority.stop()
        await self._ledger.close()

    def not_ready(self) -> list[str]:
        """Without PostgreSQL it still leads (keys can be made and revoked), but it is not ready."""
        reasons = self.authority.not_ready()
        if self._writer.away:
            reasons.append(self._writer.away)
        elif self.authority.leading and not self._writer.compared:
            reasons.append("ledger and bus were not compared yet")
        return reasons


def build(settings: AccountingSettings, bus: Bus) -> Accounting:
    """Wire it. Raises ValueError when the file with the database's address cannot be read."""
    return Accounting(settings, bus)
