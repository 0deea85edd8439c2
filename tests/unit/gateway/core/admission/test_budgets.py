"""Budgets as a gateway counts them: exact on a host, in step with the ledger and other hosts however late they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from libs.events.budget import LevelBudget
from libs.events.usage import GatewayChanges, GatewayHoldings, Holding
from services.gateway.core.admission.budget_line import MAX_SETTLED
from services.gateway.core.admission.budgets import (
    Reservation,
    Shortfall,
    Spending,
)
from services.gateway.core.admission.other_hosts import LOST_S, Acknowledgements, OtherHosts
from services.gateway.core.admission.shared_table import (
    KEPT_S,
    Table,
    TableFull,
    digest,
)
from services.gateway.core.usage.spool_marks import Marks

from .tables import again, tables

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
TOTAL = LevelBudget(account="k-1", amount_micros=100, period="total")
OTHER = LevelBudget(account="k-3", amount_micros=100, period="total")
DAY = LevelBudget(account="a/b/c", amount_micros=60, period="day")


class Worker:
    """One worker, with its spool: a cost's position is its place, from 1."""

    def __init__(self, name: str, host: str, table: Table, marks: Marks | None = None, life: int = 1) -> None:
        self.name, self.host, self.table, self.life = name, host, table, life
        self.marks = marks or Marks()
        self.other_hosts = OtherHosts(name, host)
        self.spending = Spending(table, self.other_hosts, self.marks)
        self.number = -1
        self.confirming = Acknowledgements()

    def confirm(self, now: float) -> None:
        if (confirmed := self.confirming.confirmed(self.other_hosts, now)) is not None:
            self.spending.told(confirmed[0])

    def begun(self) -> Worker:
        self.spending.begin()
        return self

    def report(self) -> GatewayHoldings:
        self.number += 1
        return GatewayHoldings(
            at=NOON,
            gateway_id=self.name,
            host=self.host,
            life=self.life,
            number=self.number,
            budgets=self.spending.all(),
        )

    def hear(self, report: GatewayHoldings | GatewayChanges, now: float = 0.0) -> None:
        if self.other_hosts.heard(report, now):
            self.spending.heard(report)

    def used(self, at: datetime = NOON) -> int:
        return self.spending.used("k-1", "total", at)


def worker(name: str = "gw-1") -> Worker:
    return Worker(name, name, tables()[0]).begun()


def taken(one: Worker, micros: int, *budgets: LevelBudget, at: datetime = NOON) -> Reservation:
    held = one.spending.reserve(budgets, micros, at)
    assert isinstance(held, Reservation)
    return held


def said(number: int, host: str = "elsewhere", life: int = 1, **budget: int) -> GatewayHoldings:
    """A gateway of another host holds this of the key's total."""
    budgets = {"k-1 total": Holding(**budget)} if budget else {}
    return GatewayHoldings(at=NOON, gateway_id=f"gw-{host}", host=host, life=life, number=number, budgets=budgets)


def test_a_reservation_gives_way_to_the_cost_and_that_to_the_ledger() -> None:
    one = worker()
    held = taken(one, 40, TOTAL)
    assert one.used() == 40
    one.spending.settle(held, 15, 1000, NOON)
    assert one.used() == 15
    one.marks.add(1000, 7)
    one.spending.counted("k-1", 6, {"total": 0})
    assert one.used() == 15, "the ledger is not there yet"
    one.spending.counted("k-1", 7, {"total": 15})
    assert one.used() == 15
    assert [h for h in one.report().budgets.values() if h.reserved or h.settled] == []


def test_one_budget_that_is_short_refuses_for_all_and_takes_nothing() -> None:
    one = worker()
    taken(one, 50, TOTAL, DAY)
    assert one.spending.reserve((TOTAL, DAY), 11, NOON) == Shortfall(DAY, 10, 11)
    assert one.used() == 50
    assert isinstance(one.spending.reserve((TOTAL, DAY), 10, NOON), Reservation)
    assert isinstance(one.spending.reserve((DAY,), 0, NOON), Reservation), "what costs nothing needs no room"


def test_a_reservation_changes_to_what_fits_or_stays() -> None:
    one = worker()
    taken(one, 20, TOTAL, DAY)
    held = taken(one, 30, TOTAL, DAY)
    assert one.spending.change(held, 41) == Shortfall(DAY, 40, 41)
    assert one.used() == 50
    changed = one.spending.change(held, 40)
    assert isinstance(changed, Reservation)
    assert one.used() == 60
    one.spending.settle(changed, 1, 10, NOON)
    assert one.used() == 21


def test_while_a_reservation_changes_no_other_worker_sees_less_of_it() -> None:
    one, other = tables(2)
    first = Worker("gw-1", "one", one).begun()
    second = Worker("gw-2", "one", other).begun()
    held = taken(first, 90, TOTAL)
    seen: list[int] = []

    class Watched:
        def __getitem__(self, at: int) -> int:
            return one.words[at]

        def __setitem__(self, at: int, value: int) -> None:
            one.words[at] = value
            seen.append(second.used())

    first.table.words, one = Watched(), Table(one.words)  # type: ignore[assignment]
    for micros in (60, 95, 101):
        changed = first.spending.change(held, micros)
        held = changed if isinstance(changed, Reservation) else held
    assert (held.micros, min(seen)) == (95, 60)
    assert second.used() == 95


def test_no_budget_of_a_request_is_given_the_row_of_another() -> None:
    (table,) = tables(rows=2)
    table.now = 1
    one = Worker("gw-1", "one", table).begun()
    for budget in (TOTAL, OTHER):
        one.spending.settle(taken(one, 5, budget), 0, 1, NOON)
    table.now += KEPT_S + 1
    taken(one, 5, LevelBudget(account="k-2", amount_micros=100, period="total"))
    kept = {table.words[row] for row in table.rows()}
    both = sorted((TOTAL, OTHER), key=lambda budget: digest(f"{budget.account} total") not in kept)
    with pytest.raises(TableFull):
        one.spending.reserve(tuple(both), 5, NOON)
    assert one.used() == 0


def test_a_day_ends_and_with_it_what_was_spent_in_it() -> None:
    one = worker()
    tomorrow = NOON + timedelta(days=1)
    first, second = taken(one, 30, DAY), taken(one, 30, DAY)
    one.spending.settle(first, 25, 10, NOON)
    one.spending.settle(second, 20, 20, tomorrow)
    assert one.spending.used("a/b/c", "day", NOON) == 25
    assert one.spending.used("a/b/c", "day", tomorrow) == 20
    one.marks.add(20, 1)
    one.spending.counted("a/b/c", 1, {"2026-11-29": 25, "2026-11-30": 20})
    assert one.spending.used("a/b/c", "day", tomorrow) == 20


def test_an_older_word_of_the_ledger_changes_nothing() -> None:
    one = worker()
    one.spending.counted("k-1", 5, {"total": 50})
    one.spending.counted("k-1", 4, {"total": 40})
    assert one.used() == 50


def test_workers_of_a_host_keep_a_budget_exactly_without_any_bus() -> None:
    first, second = [Worker(f"gw-{n}", "here", table).begun() for n, table in enumerate(tables(2))]
    held = taken(first, 60, TOTAL)
    assert second.spending.reserve((TOTAL,), 41, NOON) == Shortfall(TOTAL, 40, 41)
    taken(second, 40, TOTAL)
    first.spending.settle(held, 20, 1, NOON)
    assert (first.used(), second.used()) == (60, 60)


def test_a_worker_that_stood_still_knows_from_the_others_what_the_ledger_said() -> None:
    still, awake = [Worker(f"gw-{n}", "here", table).begun() for n, table in enumerate(tables(2))]
    awake.spending.settle(taken(awake, 90, TOTAL), 90, 1, NOON)
    awake.marks.add(1, 3)
    awake.spending.counted("k-1", 3, {"total": 90})
    awake.report(), awake.report()
    assert still.used() == 90, "the ledger told only the other one"


def test_what_a_dead_worker_held_stays_until_its_spool_says_how_it_ended() -> None:
    first, second = [Worker(f"gw-{n}", "here", table).begun() for n, table in enumerate(tables(2))]
    taken(first, 60, TOTAL)
    first.spending.settle(taken(first, 30, TOTAL), 10, 1, NOON)
    next_life = Worker("gw-0", "here", again(first.table), first.marks)
    assert second.used() == 70
    budgeted = {("k-1", "total")}
    for position, micros in ((1, 10), (2, 5)):
        next_life.spending.remember("k-1", "a/b/c", micros, position, NOON, budgeted)  # type: ignore[arg-type]
    assert second.used() == 70, "it is still reading"
    next_life.begun()
    assert (second.used(), next_life.used()) == (15, 15)
    assert set(next_life.spending.all()) == {"k-1 total"}, "where there is no budget nothing is held"


def test_what_other_hosts_hold_counts_until_the_ledger_has_it() -> None:
    one = worker()
    one.spending.counted("k-1", 1, {"total": 10})
    one.hear(said(0, reserved=5, settled=20, until=2))
    one.hear(said(0, "third", settled=10))
    assert one.used() == 45
    one.spending.counted("k-1", 2, {"total": 30})
    assert one.used() == 45, "the 20 are in the ledger now and not counted twice"
    one.other_hosts.forget(KEPT_S + 1.0)
    assert one.used() == 40, "they are gone, and so is what they were answering; what they settled is in their spools"
    one.hear(said(0, life=2))
    assert one.used() == 40
    one.hear(said(0, "third", life=2))
    assert one.used() == 30


def test_a_host_that_heard_more_of_the_ledger_is_believed() -> None:
    one = worker()
    one.hear(said(0, settled=30, until=4))
    assert one.used() == 30
    one.hear(said(1, settled=0, ledger=4, spent=30))
    assert one.used() == 30, "the ledger's word has come to them, and not yet here"
    one.spending.counted("k-1", 4, {"total": 30})
    assert one.used() == 30


def test_what_others_have_not_heard_is_at_most_a_share_of_what_is_left() -> None:
    one = worker()
    one.hear(said(0, reserved=1))
    one.hear(said(0, "third", reserved=1))
    held = [taken(one, 8, TOTAL) for _ in range(4)]
    assert one.spending.reserve((TOTAL,), 8, NOON) == Shortfall(TOTAL, 0, 8)
    one.spending.told({name: held.reserved + held.settled for name, held in one.report().budgets.items()})
    held.append(taken(one, 8, TOTAL))
    for each in held:
        one.spending.settle(each, 8, 1, NOON)
    assert one.used() == 42
    assert isinstance(one.spending.reserve((TOTAL,), 19, NOON), Shortfall), "of 60, 8 were new"


def test_what_one_used_that_stands_still_is_left_to_it_until_it_is_heard_or_lost() -> None:
    """It may have used its share before it could say so: nobody counts on being heard while it is not."""
    one, other = Worker("gw-1", "one", tables()[0]).begun(), Worker("gw-2", "two", tables()[0]).begun()
    now = 0.0

    def tell(who: Worker, *hears: Worker) -> None:
        report = who.report()
        for each in hears:
            each.hear(report, now)
        who.confirming.told(report.budgets, {})

    def use_up(who: Worker) -> int:
        count = 0
        while isinstance(held := who.spending.reserve((TOTAL,), 5, NOON), Reservation):
            who.spending.settle(held, 5, 1, NOON)
            count += 5
        return count

    tell(one, other)
    tell(other, one)
    used = use_up(other)  # and then it stands still
    assert used == 50
    for second in range(1, 12):
        now = 5.0 * second
        used += use_up(one)
        tell(one)
        one.confirm(now)
    assert used == 100
    tell(other, one)
    assert use_up(one) == 0
    now += LOST_S
    for _ in range(2):
        one.other_hosts.forget(now + LOST_S)
    assert one.other_hosts.hosts == 1, "what is left is left to those that are there"


def test_what_was_said_to_be_held_no_more_is_new_when_it_is_held_again() -> None:
    """The others may believe the last word, whether or not it is known that they heard it."""
    for lost in (False, True):
        one, other = Worker("gw-1", "one", tables()[0]).begun(), Worker("gw-2", "two", tables()[0]).begun()

        def tell(who: Worker, to: Worker, now: float, stored: bool = True) -> None:
            report = who.report()
            to.hear(report, now)
            if stored:
                who.confirming.told(report.budgets, {})
            else:
                who.confirming.unsure(report.budgets)
            for each in (who, to):
                each.confirm(now)

        tell(one, other, 1.0)
        tell(other, one, 2.0)
        held = taken(one, 90, TOTAL)
        for now in range(3, 9):
            tell(*((one, other) if now % 2 else (other, one)), now)
        assert one.spending.all()["k-1 total"].reserved == 90
        one.spending.settle(held, 0, 1, NOON)
        tell(one, other, 9.0, stored=not lost)
        # The bus is away from now on; earlier answers still come.
        one.confirm(10.0)
        first = taken(one, 40, TOTAL)
        assert isinstance(one.spending.reserve((TOTAL,), 40, NOON), Shortfall)
        one.spending.settle(first, 40, 2, NOON)
        taken(other, 50, TOTAL)


def test_one_request_that_fits_is_let_through_though_the_share_be_smaller() -> None:
    one = worker()
    one.hear(said(0, reserved=40))
    held = taken(one, 60, TOTAL)
    assert held.near
    assert isinstance(one.spending.reserve((TOTAL,), 1, NOON), Shortfall)


def test_another_stream_begins_anew() -> None:
    one, rows_of_others = [Worker(f"gw-{n}", "here", table).begun() for n, table in enumerate(tables(2))]
    for each in (one, rows_of_others):
        each.spending.counted("k-1", 900, {"total": 40})
    one.spending.settle(taken(one, 10, TOTAL), 10, 1, NOON)
    for each in (one, rows_of_others):
        each.marks.begin("2026-12-01")
        each.spending.begin_epoch()
    assert one.used() == 50
    one.marks.add(1, 2)
    one.spending.counted("k-1", 2, {"total": 50})
    assert (one.used(), rows_of_others.used()) == (50, 50)


def test_a_ledger_that_is_away_for_long_takes_no_more_memory_and_loses_nothing() -> None:
    one = worker()
    wide = LevelBudget(account="k-1", amount_micros=10**9, period="total")
    for number in range(10 * MAX_SETTLED):
        one.spending.settle(taken(one, 9, wide), 3, number + 1, NOON)
        one.marks.add(number + 1, number + 1)
    line = one.spending._lines["k-1"]["total"]
    assert len(line._settled or ()) <= 2 * MAX_SETTLED
    assert one.used() == 30 * MAX_SETTLED
    half = 5 * MAX_SETTLED
    one.spending.counted("k-1", half, {"total": 3 * half})
    assert 0 <= one.used() - 30 * MAX_SETTLED <= 3 * MAX_SETTLED / 10
    one.spending.counted("k-1", 2 * half, {"total": 6 * half})
    assert one.used() == 30 * MAX_SETTLED


AMOUNT, MAX_REQUEST = 400, 50
WIDE = LevelBudget(account="k-1", amount_micros=AMOUNT, period="total")
HOSTS = {"gw-1": "one", "gw-2": "one", "gw-3": "two", "gw-4": "three"}
names = st.sampled_from(sorted(HOSTS))
Request = tuple[str, int, Reservation]
"""By whom it is answered, and in which life of it."""


class Cluster(RuleBasedStateMachine):
    """Three hosts, one with two workers, and a ledger. The bus comes and goes, workers die, stand still and wake up."""

    requests = Bundle("requests")

    @initialize()
    def begin(self) -> None:
        one, two = tables(2)
        memory = {"gw-1": one, "gw-2": two, "gw-3": tables()[0], "gw-4": tables()[0]}
        self.workers = {name: Worker(name, host, memory[name]).begun() for name, host in HOSTS.items()}
        self.spool: dict[str, list[int]] = {name: [] for name in HOSTS}
        self.open: dict[str, int] = dict.fromkeys(HOSTS, 0)
        self.usage: list[tuple[str, int]] = []
        """Which gateway's spool up to where: the messages of USAGE."""
        self.ledger = 0
        self.bus = True
        self.still: set[str] = set()
        self.now = 100.0
        self.last: dict[str, GatewayHoldings] = {}
        """What the bus keeps of each."""
        for name in HOSTS:
            self.tell(name)

    def spent(self) -> int:
        ends: dict[str, int] = {}
        for name, end in self.usage[: self.ledger]:
            ends[name] = end
        return sum(sum(self.spool[name][:end]) for name, end in ends.items())

    def tell(self, name: str) -> None:
        if not self.bus or name in self.still:
            return
        self.now += 0.01
        report = self.workers[name].report()
        self.last[name] = report
        for other in set(HOSTS) - self.still:
            self.workers[other].hear(report, self.now)
        self.workers[name].confirming.told(report.budgets, {})
        for one in self.workers.values():
            if one.name not in self.still:
                one.confirm(self.now)

    @rule(target=requests, name=names, micros=st.integers(1, MAX_REQUEST))
    def reserve(self, name: str, micros: int) -> Request | None:
        return self.asked(name, micros)

    @rule(request=consumes(requests), part=st.integers(0, 100))
    def settle(self, request: Request | None, part: int) -> None:
        if request is not None and request[0] not in self.still and request[1] == self.workers[request[0]].life:
            self.answered(request, part)

    @rule(name=names, micros=st.integers(20, MAX_REQUEST), part=st.integers(1, 100))
    def use_up(self, name: str, micros: int, part: int) -> None:
        """As much as it is let."""
        while (request := self.asked(name, micros)) is not None:
            self.answered(request, part)

    def asked(self, name: str, micros: int) -> Request | None:
        if name in self.still:
            return None
        held = self.workers[name].spending.reserve((WIDE,), micros, NOON)
        if isinstance(held, Shortfall):
            return None
        self.open[name] += micros
        return name, self.workers[name].life, held

    def answered(self, request: Request, part: int) -> None:
        name, _, held = request
        self.spool[name].append(max(1, held.micros * part // 100))
        self.workers[name].spending.settle(held, self.spool[name][-1], len(self.spool[name]), NOON)
        self.open[name] -= held.micros

    @rule(name=names)
    def publish(self, name: str) -> None:
        if self.bus and name not in self.still and self.spool[name]:
            self.usage.append((name, len(self.spool[name])))
            self.workers[name].marks.add(len(self.spool[name]), len(self.usage))

    @precondition(lambda self: self.bus)
    @rule()
    def enter(self) -> None:
        self.ledger = len(self.usage)
        for name in set(HOSTS) - self.still:
            self.read(name)

    def read(self, name: str) -> None:
        self.workers[name].spending.counted("k-1", self.ledger, {"total": self.spent()})

    @rule(name=names)
    def report(self, name: str) -> None:
        self.tell(name)

    @rule()
    def part(self) -> None:
        self.bus = False

    @rule()
    def meet(self) -> None:
        self.bus = True

    @rule(name=names)
    def stand_still(self, name: str) -> None:
        self.still.add(name)

    @precondition(lambda self: self.bus)
    @rule(name=names)
    def wake(self, name: str) -> None:
        """One of a host of its own hears the others before it admits anything; one beside others need not have read
        what the ledger said."""
        if name not in self.still:
            return
        self.still.discard(name)
        for other in set(HOSTS) - self.still:
            self.tell(other)
        if HOSTS[name] != "one" or {"gw-1", "gw-2"} & self.still:
            self.read(name)

    @rule(name=names, cut=st.integers(0, 100))
    def die(self, name: str, cut: int) -> None:
        """kill -9, and another life: what it was answering is written down as cut, spool and ledger are read."""
        if not self.bus or name in self.still:
            return
        if self.open[name]:
            self.spool[name].append(self.open[name] * cut // 100)
        self.open[name] = 0
        old = self.workers[name]
        new = self.workers[name] = Worker(name, HOSTS[name], again(old.table), old.marks, old.life + 1)
        self.read(name)
        for place, cost in enumerate(self.spool[name], start=1):
            new.spending.remember("k-1", "a/b/c", cost, place, NOON, {("k-1", "total")})  # type: ignore[arg-type]
        new.begun()
        for report in self.last.values():
            new.hear(report, self.now)
        for other in set(HOSTS) - self.still:
            self.tell(other)

    @invariant()
    def a_budget_is_overspent_by_a_request_of_every_other_host_at_most(self) -> None:
        assert sum(map(sum, self.spool.values())) + sum(self.open.values()) <= AMOUNT + 2 * MAX_REQUEST

    @invariant()
    def a_worker_misses_nothing_of_its_host(self) -> None:
        for name, one in self.workers.items():
            rows_of_others = [other for other in HOSTS if HOSTS[other] == HOSTS[name]]
            assert one.used() >= sum(sum(self.spool[other]) + self.open[other] for other in rows_of_others)

    def teardown(self) -> None:
        """When everything has come everywhere, every gateway says what the ledger says."""
        if not hasattr(self, "workers"):
            return
        self.still.clear()
        self.bus = True
        for name in HOSTS:
            self.publish(name)
        self.enter()
        for _ in range(2):
            for name in HOSTS:
                self.tell(name)
        for one in self.workers.values():
            assert one.used() == self.spent() + sum(self.open.values())
            assert all(held.settled == 0 for held in one.spending.all().values())


Cluster.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCluster = Cluster.TestCase
