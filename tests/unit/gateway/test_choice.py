"""Who is asked, and who is left alone for a while."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.breaker import CONSECUTIVE, OPEN_MAX_S, OPEN_S, Breaker
from services.gateway.core.choice import choose, retry_after


@dataclass
class Candidate:
    replica_id: str
    in_flight: int = 0
    parallel: int = 4
    draining: bool = False
    breaker: Breaker = field(default_factory=Breaker)


def test_the_least_loaded_in_proportion_to_its_slots() -> None:
    small, large = Candidate("small", 2, 2), Candidate("large", 4, 8)
    assert choose([small, large], [], 0, 0) is large
    large.in_flight = 9
    assert choose([small, large], [], 0, 0) is small


def test_equals_share() -> None:
    candidates = [Candidate(str(n)) for n in range(4)]
    picked = Counter(choose(candidates, [], 0, draw / 100).replica_id for draw in range(100))  # type: ignore[union-attr]
    assert set(picked.values()) == {25}


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
    breaker.taken(11.0)
    assert not breaker.allows(11.0)
    breaker.failed(11.5)
    assert not breaker.allows(11.5 + 2 * OPEN_S - 0.01)
    breaker.taken(14.0)
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
                breaker.taken(now)
            case _:
                getattr(breaker, step)()
    assert breaker.allows(now + OPEN_MAX_S + 0.01)
