"""Which endpoint answers: the least loaded one that is allowed to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from .breaker import Breaker


class Candidate(Protocol):
    """What a choice needs to know of an endpoint."""

    @property
    def replica_id(self) -> str: ...
    @property
    def parallel(self) -> int: ...
    @property
    def draining(self) -> bool: ...
    @property
    def in_flight(self) -> int:
        """Requests of this gateway and, as last heard, of the others."""
        ...

    @property
    def breaker(self) -> Breaker: ...


C = TypeVar("C", bound=Candidate)


def choose(candidates: Sequence[C], tried: Iterable[str], now: float, draw: float) -> C | None:
    """The candidate with the lowest share of its parallel slots in use; ``draw`` in [0, 1) picks among equals.

    Draining endpoints, those already tried for this request and those with an open breaker get nothing.
    None: nobody is left.
    """
    best: list[C] = []
    lowest = 0.0
    for candidate in candidates:
        if candidate.draining or candidate.replica_id in tried or not candidate.breaker.allows(now):
            continue
        load = candidate.in_flight / max(1, candidate.parallel)
        if not best or load < lowest:
            best = [candidate]
            lowest = load
        elif load == lowest:
            best.append(candidate)
    if not best:
        return None
    return best[int(draw * len(best))] if len(best) > 1 else best[0]


def retry_after(candidates: Sequence[Candidate], now: float) -> float:
    """Seconds until one of them may be asked again; 2 where nothing is known (a replica takes a moment to start)."""
    waits = [c.breaker.open_until - now for c in candidates if not c.draining and c.breaker.open_until is not None]
    return max(1.0, min(waits)) if waits else 2.0
