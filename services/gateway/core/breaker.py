"""Whether an endpoint is worth asking: consecutive failures and error rate open it, one probe closes it."""

from __future__ import annotations

CONSECUTIVE = 3
"""Failures in a row that open the breaker: a refused connection costs a client nothing, so few are enough."""
RATE_SAMPLES = 20
RATE_MINIMUM = 10
RATE_FAILED = 0.5
OPEN_S = 1.0
"""The first rest; doubled after each failed probe: an engine that restarts is back within a second of being ready."""
OPEN_MAX_S = 30.0


class Breaker:
    """Closed, open until a moment, or half open with one probe on its way.

    Times are seconds on any clock that only rises.
    """

    __slots__ = ("_consecutive", "_history", "_opened", "_probe_until", "open_until")

    def __init__(self) -> None:
        self._consecutive = 0
        self._history: list[bool] = []
        self._opened = 0
        self._probe_until = 0.0
        self.open_until: float | None = None
        """None: closed."""

    @property
    def closed(self) -> bool:
        return self.open_until is None

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now. Does not take the probe: ``taken`` does."""
        if self.open_until is None:
            return True
        return now >= self.open_until and now >= self._probe_until

    def taken(self, now: float) -> None:
        """A request is on its way. In half open it is the probe, and others wait for it (at most ``OPEN_MAX_S``)."""
        if self.open_until is not None:
            self._probe_until = now + OPEN_MAX_S

    def succeeded(self) -> None:
        self._consecutive = 0
        if self.open_until is not None:
            self.open_until = None
            self._opened = 0
            self._probe_until = 0.0
            self._history.clear()
        elif self._history:
            self._note(False)

    def failed(self, now: float) -> None:
        self._consecutive += 1
        self._note(True)
        if self.open_until is not None or self._consecutive >= CONSECUTIVE or self._rate_exceeded():
            self.open_until = now + min(OPEN_MAX_S, OPEN_S * 2**self._opened)
            self._opened += 1
            self._probe_until = 0.0

    def abandoned(self) -> None:
        """The request ended without saying anything about the endpoint (the client left)."""
        self._probe_until = 0.0

    def _note(self, failure: bool) -> None:
        self._history.append(failure)
        if len(self._history) > RATE_SAMPLES:
            del self._history[0]

    def _rate_exceeded(self) -> bool:
        return len(self._history) >= RATE_MINIMUM and sum(self._history) >= RATE_FAILED * len(self._history)
