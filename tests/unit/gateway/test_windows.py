"""A minute that slides: never more than the limit in any sixty seconds, and all of it back afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.windows import SPAN_S, Counts, Window


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 3)), max_size=60))
def test_a_window_holds_at_least_the_last_minute_and_nothing_older_than_its_span(
    steps: list[tuple[float, int]],
) -> None:
    window = Window()
    now = 1000.0
    added: list[tuple[float, int]] = []
    for wait, amount in steps:
        now += wait
        window.add(now, amount)
        added.append((now, amount))
        total = window.total(now)
        assert total >= sum(n for at, n in added if now - at <= 60)
        assert total <= sum(n for at, n in added if now - at < SPAN_S + 1)
    assert window.total(now + SPAN_S + 1) == 0


@given(st.lists(st.floats(0, 5), min_size=3, max_size=40), st.integers(1, 3))
def test_after_the_time_it_names_there_is_room(waits: list[float], amount: int) -> None:
    window = Window()
    now = 50.0
    for wait in waits:
        now += wait
        window.add(now)
    before = window.total(now)
    frees = window.frees(now, amount)
    assert 0 <= frees <= 61
    assert window.total(now + frees + 0.001) <= before - min(amount, before)


@given(st.lists(st.floats(0, 10), max_size=80), st.integers(1, 10))
def test_no_minute_admits_more_than_the_limit(waits: list[float], limit: int) -> None:
    counts = Counts()
    now = 7.5
    admitted: list[float] = []
    for wait in waits:
        now += wait
        if counts.over("k", limit, now) is None:
            counts.add("k", now)
            admitted.append(now)
        assert sum(1 for at in admitted if now - at <= 60) <= limit


def test_a_limit_of_nothing_admits_nothing() -> None:
    refusal = Counts().over("k", 0, 1.0)
    assert refusal is not None
    assert refusal.retry_after_s == 60


def test_what_others_count_is_added_and_replaced_not_summed() -> None:
    counts = Counts()
    counts.add("k", 1.0, 2)
    counts.heard("b", {"k": 3, "j": 1})
    counts.heard("c", {"k": 4})
    assert counts.used("k", 1.0) == 9
    counts.heard("b", {"k": 1})
    assert (counts.used("k", 1.0), counts.used("j", 1.0)) == (7, 0)
    counts.heard("b", {})
    counts.heard("c", {})
    assert counts.used("k", 1.0) == 2
    assert counts.local(1.0) == {"k": 2}
    assert counts.local(100.0) == {}
