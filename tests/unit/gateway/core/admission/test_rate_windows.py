"""A minute that slides: never more than the limit in any sixty seconds, and all of it back afterwards."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from libs.events.usage import GatewayHoldings
from services.gateway.core.admission.other_hosts import OtherHosts, fits
from services.gateway.core.admission.rate_windows import Counts, Tally
from services.gateway.core.admission.shared_table import MINUTE_S, Table

from .tables import again, tables

AT = datetime(2026, 11, 29, tzinfo=UTC)


def counts(table: Table | None = None) -> Counts:
    return Counts(table or tables()[0], OtherHosts("gw-1", "here"))


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 3)), max_size=60))
def test_a_window_holds_at_least_the_last_minute_and_nothing_older_than_its_span(
    steps: list[tuple[float, int]],
) -> None:
    (table,) = tables()
    now = 1000.0
    tally = Tally("k", table, now)
    added: list[tuple[float, int]] = []
    for wait, amount in steps:
        now += wait
        tally.add(table, now, amount, 2 * amount)
        added.append((now, amount))
        assert tally.requests >= sum(n for at, n in added if now - at <= 60)
        assert tally.requests <= sum(n for at, n in added if now - at < MINUTE_S + 1)
        assert tally.tokens == 2 * tally.requests
    tally.turn(table, now + MINUTE_S + 1)
    assert (tally.requests, tally.tokens, tally.empty) == (0, 0, True)


@given(st.lists(st.floats(0, 5), min_size=3, max_size=40), st.integers(1, 3))
def test_after_the_time_it_names_there_is_room(waits: list[float], amount: int) -> None:
    (table,) = tables()
    now = 50.0
    tally = Tally("k", table, now)
    for wait in waits:
        now += wait
        tally.add(table, now, 1, 0)
    before = tally.requests
    frees = tally.frees(now, "requests", amount)
    assert 0 <= frees <= 61
    tally.turn(table, now + frees + 0.001)
    assert tally.requests <= before - min(amount, before)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.booleans()), max_size=80), st.integers(1, 10))
def test_no_minute_admits_more_than_the_limit_on_a_host_whoever_dies(
    steps: list[tuple[float, int, bool]], limit: int
) -> None:
    """Three workers; some die, and another life of theirs goes on."""
    rows_of_others = tables(3)
    workers = [counts(table) for table in rows_of_others]
    now = 1007.5
    admitted: list[float] = []
    for wait, which, dies in steps:
        now += wait
        if dies:
            workers[which] = counts(again(rows_of_others[which]))
        workers[which].add("k", now, requests=1)
        if workers[which].used("k", now).requests <= limit:
            admitted.append(now)
        else:
            workers[which].add("k", now, requests=-1)
        assert sum(1 for at in admitted if now - at <= 60) <= limit


def test_a_worker_that_stands_still_counts_for_its_minute() -> None:
    first, second = map(counts, tables(2))
    first.add("k", 100.0, requests=3, tokens=40)
    assert second.used("k", 160.9)[:2] == (3, 40)
    assert second.used("k", 161.0)[:2] == (0, 0)


def test_what_other_hosts_count_is_added_and_replaced_not_summed() -> None:
    other_hosts = OtherHosts("gw-1", "here")
    here = Counts(tables()[0], other_hosts)

    def said(gateway: str, number: int, **requests: int) -> None:
        message = GatewayHoldings(
            at=AT, gateway_id=gateway, host=gateway, life=1, number=number, requests=requests, tokens={"k": 5}
        )
        other_hosts.heard(message, 1.0)

    here.add("k", 1.0, requests=2)
    said("b", 0, k=3, j=1)
    said("c", 0, k=4)
    assert here.used("k", 1.0)[:2] == (9, 10)
    said("b", 1, k=1)
    assert (here.used("k", 1.0).requests, here.used("j", 1.0).requests) == (7, 0)
    other_hosts.forget(1.0 + MINUTE_S + 1)
    assert here.used("k", 1.0)[:2] == (2, 0)


def test_what_is_told_is_all_or_what_has_changed_and_what_is_over_leaves() -> None:
    here = counts()
    here.add("k", 1.0, requests=2)
    here.add("j", 1.0, tokens=7)
    assert here.whole() == {"k": (2, 0), "j": (0, 7)}
    assert here.changes() == {}
    here.add("k", 2.0, requests=1)
    assert here.changes() == {"k": (3, 0)}
    here.sweep(100.0)
    assert here.changes() == {"k": (0, 0), "j": (0, 0)}, "they hear of the end too"
    here.sweep(101.0)
    assert here.whole() == {}


def test_what_others_heard_of_an_earlier_tally_says_nothing_of_the_next() -> None:
    here = counts()
    here.add("k", 1.0, requests=500, tokens=9)
    here.whole()
    here.sweep(100.0)
    here.changes()
    said = here.said(["k"])
    here.sweep(101.0)
    here.add("k", 102.0, requests=3, tokens=2)
    here.heard(said)
    assert here.used("k", 102.0) == (3, 2, 3, 2)
    here.changes()
    here.heard(here.said(["k"]))
    assert here.used("k", 102.0) == (3, 2, 0, 0)


def test_new_is_what_other_hosts_have_not_heard() -> None:
    first, second = map(counts, tables(2))
    first.add("k", 10.2, requests=4)
    assert second.used("k", 10.5).new_requests == 4
    assert first.whole() == {"k": (4, 0)}
    said = first.said(["k"])
    first.add("k", 10.6, requests=1)
    first.heard(said)
    first.sweep(10.7)
    assert second.used("k", 10.7) == (5, 0, 1, 0)
    first.add("k", 69.0, tokens=3)
    first.sweep(75.0)
    assert second.used("k", 75.0) == (0, 3, 0, 3), "what is over is not new"


@given(st.integers(1, 5), st.integers(0, 200), st.lists(st.integers(0, 4), max_size=300))
def test_hosts_that_do_not_hear_of_each_other_use_no_more_than_there_is_and_one_each(
    hosts: int, limit: int, asking: list[int]
) -> None:
    used = [0] * hosts
    for one in asking:
        host = one % hosts
        if fits(limit - used[host] - 1, used[host] + 1, 1, hosts):
            used[host] += 1
    assert sum(used) <= limit + hosts - 1
    assert all(some <= max(1, limit // hosts) for some in used)
