"""Who is asked, and who is left alone for a while."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.routing.circuit_breaker import (
    CONSECUTIVE,
    OPEN_MAX_S,
    OPEN_S,
    Breaker,
)
from services.gateway.core.routing.load_balancing import Share, choose, retry_after


@dataclass
class Candidate:
    replica_id: str
    in_flight: int = 0
    slots: int = 4
    draining: bool = False
    silent: bool = False
    weight: int = 1
    breaker: Breaker = field(default_factory=Breaker)


def test_the_least_loaded_in_proportion_to_its_slots() -> None:
    small, large = Candidate("small", 2, 2), Candidate("large", 4, 8)
    assert choose([small, large], [], 0, 0) is large
    large.in_flight = 9
    assert choose([small, large], [], 0, 0) is small


def test_one_whose_machine_is_silent_is_asked_when_the_others_are_full_or_there_are_none() -> None:
    heard, silent = Candidate("heard"), Candidate("silent", silent=True)
    assert choose([silent, heard], [], 0, 0) is heard
    heard.in_flight = 3
    assert choose([silent, heard], [], 0, 0) is heard
    heard.in_flight = 5
    assert choose([silent, heard], [], 0, 0) is silent
    assert choose([silent, heard], ["heard"], 0, 0) is silent
    assert choose([silent], [], 0, 0) is silent


def test_equals_share() -> None:
    candidates = [Candidate(str(n)) for n in range(4)]
    picked = Counter(choose(candidates, [], 0, draw / 100).replica_id for draw in range(100))  # type: ignore[union-attr]
    assert set(picked.values()) == {25}


def test_weights_share_what_is_alike_and_what_is_loaded() -> None:
    heavy, light = Candidate("heavy", slots=12, weight=3), Candidate("light", slots=4, weight=1)
    picked = Counter(choose([light, heavy], [], 0, draw / 100).replica_id for draw in range(100))  # type: ignore[union-attr]
    assert picked == {"heavy": 75, "light": 25}
    generator = random.Random(7)
    for _ in range(400):
        chosen = choose([heavy, light], [], 0, generator.random())
        assert chosen is not None
        chosen.in_flight += 1
    assert (heavy.in_flight, light.in_flight) == (300, 100)


@given(st.integers(1, 99), st.floats(0, 1, exclude_max=True), st.integers(1, 400))
def test_a_trial_gets_its_share_of_any_number_in_a_row(percent: int, start: float, count: int) -> None:
    share = Share(start)
    for _ in range(3):
        request_sent = sum(share.includes_next(percent) for _ in range(count))
        assert abs(request_sent - count * percent / 100) <= 4


def test_a_trials_share_follows_no_pattern_of_a_client() -> None:
    """A client that repeats itself every n requests has its share of each of them on trial."""
    for period in range(2, 12):
        share = Share(0.25)
        request_sent = Counter(turn % period for turn in range(period * 200) if share.includes_next(20))
        assert all(30 <= request_sent[turn] <= 50 for turn in range(period)), (period, request_sent)


def test_a_share_of_nothing_or_all() -> None:
    share = Share(0.999)
    assert not any(share.includes_next(0) for _ in range(100))
    assert all(share.includes_next(100) for _ in range(100))


def test_draining_tried_and_broken_ones_get_nothing() -> None:
    draining, tried, broken, good = (Candidate(n) for n in ("draining", "tried", "broken", "good"))
    draining.draining = True
    for _ in range(CONSECUTIVE):
        broken.breaker.failed(0)
    good.in_flight = 100
    everyone = [draining, tried, broken, good]
    assert choose(everyone, ["tried"], 0, 0.99) is good
    assert choose(everyone, ["tried", "good"], 0, 0) is None
    assert choose([], [], 0, 0) is None
    assert retry_after(everyone, 0.0) == OPEN_S
    assert retry_after([], 0.0) == 2


def test_a_breaker_opens_probes_once_and_closes() -> None:
    breaker = Breaker()
    for _ in range(CONSECUTIVE - 1):
        breaker.failed(10.0)
    assert breaker.allows(10.0)
    breaker.failed(10.0)
    assert not breaker.allows(10.0 + OPEN_S - 0.01)
    assert breaker.allows(10.0 + OPEN_S)
    breaker.request_sent(11.0)
    assert not breaker.allows(11.0)
    breaker.failed(11.5)
    assert not breaker.allows(11.5 + 2 * OPEN_S - 0.01)
    breaker.request_sent(14.0)
    breaker.abandoned()
    assert breaker.allows(14.0)
    breaker.succeeded()
    assert breaker.closed
    breaker.failed(15.0)
    assert breaker.closed


def test_half_of_many_failing_opens_it_too() -> None:
    breaker = Breaker()
    for _ in range(10):
        breaker.failed(0.0)
        breaker.succeeded()
    assert breaker.closed or not breaker.allows(0.0)
    breaker = Breaker()
    opened = False
    for turn in range(20):
        breaker.failed(0.0)
        opened = opened or not breaker.closed
        if turn % 2:
            breaker.succeeded()
    assert opened


def test_what_may_be_one_keys_doing_opens_no_breaker_until_it_happens_to_another() -> None:
    breaker = Breaker()
    for _ in range(100):
        breaker.failed(0.0, "k-1")
    assert breaker.closed
    breaker.failed(0.0, "k-2")
    assert not breaker.closed
    breaker = Breaker()
    for turn in range(100):
        breaker.failed(0.0, "k-1")
        if turn % 5 == 0:
            breaker.succeeded()
    assert breaker.closed
    for _ in range(CONSECUTIVE):
        breaker.failed(0.0)
    assert not breaker.closed


def test_all_that_a_dead_engine_was_answering_is_one_failure_and_no_count_of_probes_is_too_many() -> None:
    breaker = Breaker()
    for _ in range(200):
        breaker.failed(10.0)
    assert breaker.allows(10.0 + OPEN_S)
    now = 11.0
    for _ in range(2000):
        now += OPEN_MAX_S + 0.01
        assert breaker.allows(now)
        breaker.request_sent(now)
        breaker.failed(now)
    assert breaker.allows(now + OPEN_MAX_S)


@given(st.lists(st.sampled_from(["failed", "succeeded", "taken", "abandoned"]), max_size=50))
def test_no_breaker_stays_open_for_good(steps: list[str]) -> None:
    breaker = Breaker()
    now = 0.0
    for step in steps:
        now += 0.5
        match step:
            case "failed":
                breaker.failed(now)
            case "taken":
                breaker.request_sent(now)
            case _:
                getattr(breaker, step)()
    assert breaker.allows(now + OPEN_MAX_S + 0.01)
