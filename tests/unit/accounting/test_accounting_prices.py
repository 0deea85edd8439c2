"""What a request costs, and which price was in force."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.events.tenancy import Price
from services.accounting.core import prices

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)

tokens = st.integers(0, 2**31 - 1)
rates = st.integers(0, 10**9)
any_price = st.builds(Price, model=st.just("m"), prompt_micros=rates, cached_micros=rates, completion_micros=rates)


def test_rounds_up_so_that_small_requests_are_not_free() -> None:
    price = Price(model="m", prompt_micros=1000, completion_micros=3000)
    assert price.cost_micros(1, 0, 0) == 1
    assert price.cost_micros(1000, 0, 1000) == 4000
    assert price.cost_micros(0, 0, 0) == 0
    assert Price(model="m", prompt_micros=1, completion_micros=1).cost_micros(1, 0, 1) == 2


def test_a_cached_prompt_costs_the_cached_rate() -> None:
    price = Price(model="m", prompt_micros=1000, cached_micros=100, completion_micros=3000)
    assert price.cost_micros(10_000, 9_000, 0) == 1000 + 900
    assert price.cost_micros(100, 500, 0) == 10, "more cached than prompt is a miscount, not a refund"
    assert Price(model="m", prompt_micros=1000).cost_micros(10_000, 9_000, 0) == 10_000, "no rate of its own"


@given(any_price, tokens, tokens, tokens)
def test_cost_is_the_exact_sum_rounded_up_once_for_each_direction(price: Price, p: int, c: int, o: int) -> None:
    cached = min(c, p)
    rate = price.cached_micros or price.prompt_micros
    prompt = Fraction((p - cached) * price.prompt_micros + cached * rate, 1000)
    assert price.cost_micros(p, c, o) == ceil(prompt) + ceil(Fraction(o * price.completion_micros, 1000))


@given(any_price, tokens, tokens, tokens)
def test_cost_never_falls_with_more_tokens_and_fits_64_bits(price: Price, p: int, c: int, o: int) -> None:
    cost = price.cost_micros(p, c, o)
    assert 0 <= cost < 2**63
    assert price.cost_micros(p, c, o + 1) >= cost
    assert price.cost_micros(p + 1, c, o) >= cost


def test_the_price_in_force_when_it_closed_counts() -> None:
    book: prices.Prices = {}
    old, new = Price(model="m", prompt_micros=1), Price(model="m", prompt_micros=2)
    prices.add(book, 7, NOON, old)
    prices.add(book, 9, NOON + timedelta(hours=1), new)
    assert prices.in_force(book, "m", NOON - timedelta(microseconds=1)) is None
    for at, version in ((0, 7), (3599, 7), (3600, 9), (7200, 9)):
        found = prices.in_force(book, "m", NOON + timedelta(seconds=at))
        assert found is not None
        assert found.version == version


def test_the_default_price_counts_where_a_model_has_none_yet() -> None:
    book: prices.Prices = {}
    prices.add(book, 1, NOON, Price(model="*", prompt_micros=5))
    prices.add(book, 2, NOON + timedelta(hours=1), Price(model="m", prompt_micros=1))
    for model, hours, version in (("m", 0, 1), ("m", 1, 2), ("other", 1, 1)):
        found = prices.in_force(book, model, NOON + timedelta(hours=hours))
        assert found is not None
        assert found.version == version


def test_a_version_from_a_clock_that_runs_behind_is_still_the_newer_one() -> None:
    book: prices.Prices = {}
    prices.add(book, 1, NOON, Price(model="m", prompt_micros=1))
    prices.add(book, 2, NOON - timedelta(seconds=5), Price(model="m", prompt_micros=2))
    found = prices.in_force(book, "m", NOON)
    assert found is not None
    assert found.version == 2
    assert prices.newest(book) == [Price(model="m", prompt_micros=2)]


@pytest.mark.parametrize(
    ("status", "cost"),
    [
        ("ok", 30),
        ("cancelled", 30),
        ("cut", 30),
        ("upstream_error", 0),
        ("client_error", 0),
        ("refused_limit", 0),
        ("refused_budget", 0),
    ],
)
def test_only_answers_are_charged(status: str, cost: int) -> None:
    book: prices.Prices = {}
    prices.add(book, 3, NOON, Price(model="m", prompt_micros=1000, completion_micros=2000))
    assert prices.charge(book, "m", NOON, status, 10, 0, 10) == (3, cost)  # type: ignore[arg-type]


def test_without_a_price_nothing_is_charged_and_no_version_named() -> None:
    assert prices.charge({}, "m", NOON, "ok", 10, 0, 10) == (None, 0)
