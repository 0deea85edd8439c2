"""Whether an endpoint is worth asking: consecutive failures and error rate open it, one probe closes it.

A failure that may be the request's doing, as a 500 for a prompt the engine chokes on, counts only beside one of
somebody else: no key takes a model away from the others.
"""

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

    __slots__ = ("_consecutive", "_history", "_probe_until", "_rest_s", "open_until")

    def __init__(self) -> None:
        self._consecutive: list[str | None] = []
        """Whose the failures since the last success were, the newest last."""
        self._history: list[tuple[bool, str | None]] = []
        self._rest_s = OPEN_S
        self._probe_until = 0.0
        self.open_until: float | None = None
        """None: closed."""

    @property
    def closed(self) -> bool:
        """Whether requests are sent as usual."""
        return self.open_until is None

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now. Does not take the probe: ``request_sent`` does."""
        if self.open_until is None:
            return True
        return now >= self.open_until and now >= self._probe_until

    def request_sent(self, now: float) -> None:
        """A request is on its way. In half open it is the probe, and others wait for it (at most ``OPEN_MAX_S``)."""
        if self.open_until is not None:
            self._probe_until = now + OPEN_MAX_S

    def succeeded(self) -> None:
        """The endpoint answered as it should: the breaker closes."""
        self._consecutive.clear()
        if self.open_until is not None:
            self.open_until = None
            self._rest_s = OPEN_S
            self._probe_until = 0.0
            self._history.clear()
        elif self._history:
            self._note(False, None)

    def failed(self, now: float, key_id: str | None = None) -> None:
        """``key_id``: whose request it was, where that may be why; None where it cannot."""
        self._consecutive = [*self._consecutive[1 - RATE_SAMPLES :], key_id]
        self._note(True, key_id)
        if self.open_until is not None and now < self.open_until:
            return  # of before it opened: when an engine dies, all that it was answering fails at once
        in_a_row = len(self._consecutive) >= CONSECUTIVE and _of_several(self._consecutive)
        if self.open_until is not None or in_a_row or self._rate_exceeded():
            self.open_until = now + self._rest_s
            self._rest_s = min(OPEN_MAX_S, 2 * self._rest_s)
            self._probe_until = 0.0

    def abandoned(self) -> None:
        """The request ended without saying anything about the endpoint: its client left, or the answer was odd."""
        self._probe_until = 0.0

    def _note(self, failure: bool, key_id: str | None) -> None:
        self._history.append((failure, key_id))
        if len(self._history) > RATE_SAMPLES:
            del self._history[0]

    def _rate_exceeded(self) -> bool:
        failed = [key_id for failure, key_id in self._history if failure]
        enough = len(self._history) >= RATE_MINIMUM and len(failed) >= RATE_FAILED * len(self._history)
        return enough and _of_several(failed)


def _of_several(failed: list[str | None]) -> bool:
    """Whether not all of these failures can be the doing of one key's requests."""
    return None in failed or len(set(failed)) > 1
