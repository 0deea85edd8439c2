"""Budgets as a gateway counts them: exact alone, and in step with the ledger and the others however late they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from libs.events.budget import LevelBudget
from libs.events.usage import Held
from libs.events.views import Spend
from services.gateway.core.budgets import MOST_SETTLED, Reservation, Short, Spending

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
TOTAL = LevelBudget(account="k-1", amount_micros=100, period="total")
DAY = LevelBudget(account="a/b/c", amount_micros=60, period="day")


def spend(account: str, spent: dict[str, int], counted: int, **watermarks: int) -> Spend:
    return Spend(
        key_id=account,
        period="2026-11",
        requests=counted,
        prompt_tokens=0,
        completion_tokens=0,
        cost_micros=0,
        watermarks=watermarks,
        spent_micros=spent,
        counted=counted,
    )


def taken(spending: Spending, micros: int, *budgets: LevelBudget, at: datetime = NOON) -> Reservation:
    held = spending.reserve(budgets, micros, at)
    assert isinstance(held, Reservation)
    return held


def used(spending: Spending, at: datetime = NOON) -> int:
    return spending.used("k-1", "total", at)


def test_a_reservation_gives_way_to_the_cost_and_that_to_the_ledger() -> None:
    spending = Spending("gw-1")
    held = taken(spending, 40, TOTAL)
    assert used(spending) == 40
    spending.settle(held, 15, 1000, NOON)
    assert used(spending) == 15
    spending.counted("k-1", spend("k-1", {"total": 0}, 1, **{"gw-1": 999}))
    assert used(spending) == 15, "the ledger is not there yet"
    spending.counted("k-1", spend("k-1", {"total": 15}, 2, **{"gw-1": 1000}))
    assert used(spending) == 15
    assert spending.held(NOON) == {}
    assert spending.counted_until == 1000


def test_one_budget_that_is_short_refuses_for_all_and_takes_nothing() -> None:
    spending = Spending("gw-1")
    taken(spending, 50, TOTAL, DAY)
    assert spending.reserve((TOTAL, DAY), 11, NOON) == Short(DAY, 10, 11)
    assert used(spending) == 50
    assert isinstance(spending.reserve((TOTAL, DAY), 10, NOON), Reservation)
    assert isinstance(spending.reserve((DAY,), 0, NOON), Reservation), "what costs nothing needs no room"


def test_a_reservation_changes_to_what_fits_or_stays() -> None:
    spending = Spending("gw-1")
    taken(spending, 20, TOTAL, DAY)
    held = taken(spending, 30, TOTAL, DAY)
    assert spending.change(held, 41) == Short(DAY, 40, 41)
    assert used(spending) == 50
    changed = spending.change(held, 40)
    assert isinstance(changed, Reservation)
    assert used(spending) == 60
    spending.settle(changed, 1, 10, NOON)
    assert used(spending) == 21


def test_a_day_ends_and_with_it_what_was_spent_in_it() -> None:
    spending = Spending("gw-1")
    tomorrow = NOON + timedelta(days=1)
    first, second = taken(spending, 30, DAY), taken(spending, 30, DAY)
    spending.settle(first, 25, 10, NOON)
    spending.settle(second, 20, 20, tomorrow)
    assert spending.used("a/b/c", "day", NOON) == 25
    assert spending.used("a/b/c", "day", tomorrow) == 20
    spending.counted("a/b/c", spend("a/b/c", {"2026-11-29": 25, "2026-11-30": 20}, 2, **{"gw-1": 20}))
    assert spending.used("a/b/c", "day", tomorrow) == 20
    assert spending.held(tomorrow) == {}


def test_an_older_word_of_the_ledger_changes_nothing() -> None:
    spending = Spending("gw-1")
    spending.counted("k-1", spend("k-1", {"total": 50}, 5))
    spending.counted("k-1", spend("k-1", {"total": 40}, 4))
    assert used(spending) == 50


def test_what_others_hold_counts_until_the_ledger_has_it() -> None:
    spending = Spending("gw-1")
    spending.counted("k-1", spend("k-1", {"total": 10}, 1, **{"gw-2": 1, "gw-3": 1}))
    spending.heard("gw-2", {"k-1 total": Held(reserved=5, settled=20, counted=1, until=1)})
    spending.heard("gw-3", {"k-1 total": Held(settled=10, counted=1, until=1)})
    assert used(spending) == 45
    spending.counted("k-1", spend("k-1", {"total": 30}, 3, **{"gw-2": 3, "gw-3": 1}))
    assert used(spending) == 45, "the 20 are in the ledger now and not counted twice"
    spending.heard("gw-2", {"k-1 total": Held(reserved=5, counted=3, until=3)})
    assert used(spending) == 45
    spending.silent("gw-2")
    assert used(spending) == 40, "it died, and so did what it was answering"
    spending.silent("gw-3")
    assert used(spending) == 40, "what it settled is in its spool"
    spending.counted("k-1", spend("k-1", {"total": 40}, 4, **{"gw-2": 3, "gw-3": 2}))
    assert used(spending) == 40


def test_a_report_from_before_or_after_what_is_known_here() -> None:
    spending = Spending("gw-1")
    spending.heard("gw-2", {"k-1 total": Held(settled=7, counted=2)})
    assert used(spending) == 7
    spending.counted("k-1", spend("k-1", {"total": 30}, 2, **{"gw-2": 5}))
    assert used(spending) == 37
    spending.counted("k-1", spend("k-1", {"total": 37}, 3, **{"gw-2": 6}))
    spending.heard("gw-2", {"k-1 total": Held(settled=7, counted=2)})
    assert used(spending) == 37, "said before the ledger had it, heard after"


def test_a_report_from_before_this_gateway_knew_the_account() -> None:
    spending = Spending("gw-1")
    spending.counted("k-1", spend("k-1", {"total": 20}, 5, **{"gw-2": 9, "gw-3": 9}))
    spending.heard("gw-2", {"k-1 total": Held(settled=20, counted=4, until=8)})
    spending.heard("gw-3", {"k-1 total": Held(settled=30, counted=4, until=9)})
    assert used(spending) == 20 + 30, "what the ledger may have is not counted, what it cannot have is"


def test_a_ledger_that_is_away_for_long_takes_no_more_memory_and_loses_nothing() -> None:
    spending = Spending("gw-1")
    wide = LevelBudget(account="k-1", amount_micros=10**9, period="total")
    for number in range(10 * MOST_SETTLED):
        spending.settle(taken(spending, 9, wide), 3, number + 1, NOON)
    line = spending._lines["k-1"]["total"]
    assert len(line._settled) <= MOST_SETTLED
    assert used(spending) == 30 * MOST_SETTLED
    half = 5 * MOST_SETTLED
    spending.counted("k-1", spend("k-1", {"total": 3 * half}, half, **{"gw-1": half}))
    assert 0 <= used(spending) - 30 * MOST_SETTLED <= 3 * MOST_SETTLED / 10
    spending.counted("k-1", spend("k-1", {"total": 6 * half}, 2 * half, **{"gw-1": 2 * half}))
    assert used(spending) == 30 * MOST_SETTLED


GATEWAYS = ("gw-1", "gw-2", "gw-3")
WIDE = LevelBudget(account="k-1", amount_micros=10**6, period="total")


class Cluster(RuleBasedStateMachine):
    """Three gateways and a ledger; every message comes when it likes, gateways die and come back."""

    requests = Bundle("requests")

    @initialize()
    def begin(self) -> None:
        self.spending = {name: Spending(name) for name in GATEWAYS}
        self.spool: dict[str, list[int]] = {name: [] for name in GATEWAYS}
        """Costs; a cost's position is its place, from 1."""
        self.open: dict[str, int] = dict.fromkeys(GATEWAYS, 0)
        self.lives: dict[str, int] = dict.fromkeys(GATEWAYS, 0)
        self.watermarks: dict[str, int] = dict.fromkeys(GATEWAYS, 0)
        self.said: dict[str, list[Spend]] = {name: [] for name in GATEWAYS}
        self.reports: dict[tuple[str, str], list[dict[str, Held]]] = {
            (one, other): [] for one in GATEWAYS for other in GATEWAYS if one != other
        }
        self.reserved_elsewhere: dict[tuple[str, str], int] = dict.fromkeys(self.reports, 0)

    def in_ledger(self) -> int:
        return sum(sum(costs[: self.watermarks[name]]) for name, costs in self.spool.items())

    def word(self) -> Spend:
        return spend("k-1", {"total": self.in_ledger()}, sum(self.watermarks.values()), **self.watermarks)

    @rule(target=requests, gateway=st.sampled_from(GATEWAYS), micros=st.integers(1, 50))
    def reserve(self, gateway: str, micros: int) -> tuple[str, int, Reservation]:
        self.open[gateway] += micros
        return gateway, self.lives[gateway], taken(self.spending[gateway], micros, WIDE)

    @rule(request=consumes(requests), cost=st.integers(0, 60))
    def settle(self, request: tuple[str, int, Reservation], cost: int) -> None:
        gateway, life, held = request
        if life != self.lives[gateway]:
            return
        self.spool[gateway].append(cost)
        self.spending[gateway].settle(held, cost, len(self.spool[gateway]), NOON)
        self.open[gateway] -= held.micros

    @rule(gateway=st.sampled_from(GATEWAYS), some=st.integers(1, 4))
    def enter(self, gateway: str, some: int) -> None:
        """The ledger takes a few more of a gateway's records, or the same again."""
        self.watermarks[gateway] = min(len(self.spool[gateway]), self.watermarks[gateway] + some)
        for said in self.said.values():
            said.append(self.word())

    @rule(gateway=st.sampled_from(GATEWAYS), skipped=st.integers(0, 2))
    def read_spend(self, gateway: str, skipped: int) -> None:
        said = self.said[gateway]
        del said[: min(skipped, len(said) - 1)]
        if said:
            self.spending[gateway].counted("k-1", said.pop(0))

    @rule(gateway=st.sampled_from(GATEWAYS))
    def report(self, gateway: str) -> None:
        held = self.spending[gateway].held(NOON)
        for other in GATEWAYS:
            if other != gateway:
                self.reports[gateway, other].append(held)

    @rule(way=st.sampled_from([(one, other) for one in GATEWAYS for other in GATEWAYS if one != other]))
    def hear(self, way: tuple[str, str]) -> None:
        if self.reports[way]:
            held = self.reports[way].pop(0)
            self.spending[way[1]].heard(way[0], held)
            self.reserved_elsewhere[way] = held["k-1 total"].reserved if "k-1 total" in held else 0

    @rule(way=st.sampled_from([(one, other) for one in GATEWAYS for other in GATEWAYS if one != other]))
    def fall_silent(self, way: tuple[str, str]) -> None:
        self.spending[way[1]].silent(way[0])
        self.reserved_elsewhere[way] = 0

    @rule(gateway=st.sampled_from(GATEWAYS), cut=st.integers(0, 20))
    def die(self, gateway: str, cut: int) -> None:
        """kill -9: what it was answering is written down as cut; it starts with what spool and ledger say."""
        if self.open[gateway]:
            self.spool[gateway].append(cut)
        self.open[gateway] = 0
        self.lives[gateway] += 1
        self.said[gateway].clear()
        for way in self.reports:
            if way[1] == gateway:
                self.reports[way].clear()
                self.reserved_elsewhere[way] = 0
        again = self.spending[gateway] = Spending(gateway)
        again.counted("k-1", self.word())
        for place, cost in enumerate(self.spool[gateway], start=1):
            again.remember("k-1", "a/b/c", cost, place, NOON)

    @invariant()
    def nothing_is_counted_twice_and_nothing_of_its_own_is_lost(self) -> None:
        settled = sum(map(sum, self.spool.values()))
        for name, spending in self.spending.items():
            at = used(spending)
            elsewhere = sum(micros for way, micros in self.reserved_elsewhere.items() if way[1] == name)
            assert at <= settled + self.open[name] + elsewhere
            assert at >= sum(self.spool[name]) + self.open[name]

    def teardown(self) -> None:
        """When everything has come everywhere, every gateway says what the ledger says."""
        if not hasattr(self, "spending"):
            return
        for name in GATEWAYS:
            self.watermarks[name] = len(self.spool[name])
        word = self.word()
        for spending in self.spending.values():
            spending.counted("k-1", word)
        for name, spending in self.spending.items():
            held = {line: one for line, one in spending.held(NOON).items() if line == "k-1 total"}
            assert (held["k-1 total"].reserved if held else 0) == self.open[name]
            assert all(one.settled == 0 for one in held.values())
            for other in GATEWAYS:
                if other != name:
                    self.spending[other].heard(name, held)
        for spending in self.spending.values():
            assert used(spending) == word.spent_micros["total"] + sum(self.open.values())


Cluster.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCluster = Cluster.TestCase
