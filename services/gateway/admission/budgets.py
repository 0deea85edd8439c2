"""Hard budgets at the door: nothing is asked of an engine that a budget has no room for."""

from __future__ import annotations

import logging
from collections.abc import Container

from libs.bus import Bus
from libs.events.budget import Period, level_of
from libs.events.tenancy import Price
from libs.events.usage import CHARGED, RequestRecord
from libs.events.views import PriceView, Spend
from services.gateway.cluster.gossip import Gossip
from services.gateway.cluster.views import ViewCopy
from services.gateway.core.admission.budgets import Reservation, Shortfall, Spending
from services.gateway.core.admission.estimate import most_micros, most_tokens
from services.gateway.core.admission.shared_table import TableFull
from services.gateway.core.faults import over_budget, too_many_names
from services.gateway.usage.spool import Spool

from .request import InferenceRequest

log = logging.getLogger("llmgw.gateway")

ANY_MODEL = "*"


class Prices(ViewCopy[PriceView]):
    """The newest prices by model."""

    bucket = "prices"
    kind = PriceView

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self._views: dict[str, PriceView] = {}

    async def _changed(self, model: str, value: PriceView | None) -> None:
        if value is None:
            self._views.pop(model, None)
        else:
            self._views[model] = value

    def of(self, model: str) -> Price | None:
        """None: it costs nothing."""
        view = self._views.get(model) or self._views.get(ANY_MODEL)
        return None if view is None else view.price

    def most_micros(self, model: str, tokens: tuple[int, int]) -> int:
        """The most that prompt and completion tokens may cost."""
        price = self.of(model)
        return 0 if price is None else most_micros(price, *tokens)

    def cost_micros(self, record: RequestRecord) -> int:
        """What a request costs; should a price change just now, the ledger has the last word."""
        price = self.of(record.model)
        if price is None or record.status not in CHARGED:
            return 0
        return price.cost_micros(record.prompt_tokens, record.cached_tokens, record.completion_tokens)


class LedgerSums(ViewCopy[Spend]):
    """What the ledger says was spent. Everything goes straight to where budgets are counted."""

    bucket = "spend"
    kind = Spend

    def __init__(self, bus: Bus, spending: Spending, spool: Spool) -> None:
        super().__init__(bus)
        self._spending = spending
        self._spool = spool

    async def _changed(self, account: str, value: Spend | None) -> None:
        if value is None:
            return
        marks = self._spool.marks
        if value.epoch > marks.epoch:
            if marks.epoch:
                log.warning("the stream USAGE is a new one: usage the ledger may not have is published again")
                self._spool.again(value.epoch)
                self._spending.begin_epoch()
            marks.epoch = value.epoch
        # What was said of an earlier stream is a sum all the same.
        ledger = value.ledger if value.epoch == marks.epoch else 0
        self._spending.counted(account, ledger, value.spent_micros)
        self._spool.counted = max(self._spool.counted or 0, marks.position(ledger))


class BudgetHold:
    """What one request holds of budgets, until it is written down what it cost."""

    __slots__ = ("_budgets", "_reservation", "_tokens")

    def __init__(self, budgets: Budgets, reservation: Reservation, tokens: tuple[int, int]) -> None:
        self._budgets = budgets
        self._reservation = reservation
        self._tokens = tokens

    def answered_by(self, model: str) -> None:
        """Another model is to answer, at its price. Raises Fault (402) where a budget is too short for that."""
        self._reservation = self._budgets.change(self._reservation, model, self._tokens)

    def settle(self, record: RequestRecord, position: int) -> None:
        """``record`` ends at a position of the spool."""
        self._budgets.settle(self._reservation, record, position)


class Budgets:
    """The budgets of keys and of all levels above them, over all gateways."""

    def __init__(self, bus: Bus, gossip: Gossip, spool: Spool) -> None:
        self._gossip = gossip
        self._spending = gossip.spending
        self._spool = spool
        self._prices = Prices(bus)
        self._sums = LedgerSums(bus, gossip.spending, spool)

    async def start(self) -> None:
        """Begin to read prices and sums."""
        await self._prices.start()
        await self._sums.start()

    async def caught_up(self, budgeted: Container[tuple[str, Period]]) -> None:
        """Returns when prices and sums were read once, and what of this gateway's requests the ledger lacks is held:
        of the budgets that there are, by account and period."""
        await self._prices.caught_up()
        await self._sums.caught_up()
        for position, record in self._spool.closings(0):
            if micros := self._prices.cost_micros(record):
                self._spending.remember(record.key_id, record.project, micros, position, record.closed_at, budgeted)
        self._spending.begin()

    async def stop(self) -> None:
        """Read no more."""
        await self._sums.stop()
        await self._prices.stop()

    def hold(self, request: InferenceRequest) -> BudgetHold:
        """Take the most a request may cost out of every budget it is under. Raises Fault: 402 where one is short,
        503 where no more budgets can be counted."""
        served, at = request.served, request.exchange.started_at
        tokens = most_tokens(
            request.parsed, request.operation, request.body_bytes, served.route.context_length, served.max_tokens
        )
        micros = self._prices.most_micros(served.route.model, tokens)
        try:
            return BudgetHold(self, self._fitting(self._spending.reserve(request.key.budgets, micros, at)), tokens)
        except TableFull:
            raise too_many_names() from None

    def change(self, reservation: Reservation, model: str, tokens: tuple[int, int]) -> Reservation:
        """Reserve what tokens of another model may cost; see ``BudgetHold``."""
        return self._fitting(self._spending.change(reservation, self._prices.most_micros(model, tokens)))

    def _fitting(self, reserved: Reservation | Shortfall) -> Reservation:
        if isinstance(reserved, Shortfall):
            self._gossip.hurry()
            budget = reserved.budget
            level = level_of(budget.account)
            raise over_budget(level, budget.amount_micros, budget.period, reserved.left, reserved.needed)
        if reserved.near:
            self._gossip.hurry()
        return reserved

    def settle(self, reservation: Reservation, record: RequestRecord, position: int) -> None:
        """The request ended; see ``BudgetHold``."""
        self._spending.settle(reservation, self._prices.cost_micros(record), position, record.closed_at)
        if reservation.near:
            self._gossip.hurry()
