"""Which endpoint answers: the least loaded one that is allowed to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from .circuit_breaker import Breaker


class Candidate(Protocol):
    """What a choice needs to know of an endpoint."""

    @property
    def replica_id(self) -> str:
        """Which one it is among those tried."""
        ...

    @property
    def slots(self) -> int:
        """Requests it works on at once, as many times as its weight says: what its load is measured by."""
        ...

    @property
    def weight(self) -> int:
        """How often it is picked among equals, against the others' weights."""
        ...

    @property
    def draining(self) -> bool:
        """It finishes what it has and takes nothing new."""
        ...

    @property
    def silent(self) -> bool:
        """Nothing is heard of its machine: its engine may answer, or be gone."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests of this gateway and, as last heard, of the others."""
        ...

    @property
    def breaker(self) -> Breaker:
        """What this gateway saw of it, and whether it may be asked."""
        ...


C = TypeVar("C", bound=Candidate)


def choose(candidates: Sequence[C], tried: Iterable[str], now: float, draw: float) -> C | None:
    """The candidate with the lowest share of its slots in use; ``draw`` in [0, 1) picks among equals, by weight.

    Silent ones are asked where all slots of the others are in use, or there are no others.
    Draining endpoints, those already tried for this request and those with an open breaker get nothing.
    None: nobody is left.
    """
    best: list[C] = []
    lowest = 0.0
    for candidate in candidates:
        if candidate.draining or candidate.replica_id in tried or not candidate.breaker.allows(now):
            continue
        load = candidate.in_flight / candidate.slots + candidate.silent
        if not best or load < lowest:
            best = [candidate]
            lowest = load
        elif load == lowest:
            best.append(candidate)
    if len(best) <= 1:
        return best[0] if best else None
    whole = 0
    for candidate in best:
        whole += candidate.weight
    left = draw * whole
    for candidate in best:
        left -= candidate.weight
        if left < 0:
            return candidate
    return best[-1]


GOLDEN = (5**0.5 - 1) / 2
"""The multiples of no other number are spread as evenly, and they repeat with no period of a client's."""


class Share:
    """Which requests of a model go to the definition on trial.

    Of any n in a row the stated percentage does, to within two or so; which ones they are follows no pattern that a
    client's own could fall in with. ``start`` in [0, 1) keeps gateways from choosing alike.
    """

    __slots__ = ("_at",)

    def __init__(self, start: float) -> None:
        self._at = start

    def includes_next(self, percent: int) -> bool:
        """Whether the next request is one of them."""
        self._at = (self._at + GOLDEN) % 1.0
        return self._at * 100 < percent


def retry_after(candidates: Sequence[Candidate], now: float) -> float:
    """Seconds until one of them may be asked again; 2 where nothing is known (a replica takes a moment to start)."""
    waits = [c.breaker.open_until - now for c in candidates if not c.draining and c.breaker.open_until is not None]
    return max(1.0, min(waits)) if waits else 2.0
