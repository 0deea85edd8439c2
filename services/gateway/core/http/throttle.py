"""How often something may be tried from one address: a bucket for each that fills again evenly."""

from __future__ import annotations

MAX_ADDRESSES = 10_000
"""The one not seen for longest is forgotten: somebody with more addresses than that is not held up by this."""


class Throttle:
    """``per_minute`` tries a minute from an address, and as many at once after a quiet minute."""

    __slots__ = ("_left", "_per_minute")

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: dict[str, tuple[float, float]] = {}
        """By address, the least recent first: tries left, and when that was so."""

    def tried(self, address: str, now: float) -> float | None:
        """Count a try; None when it was one of those allowed, else seconds until there is another."""
        per_s = self._per_minute / 60
        left, at = self._left.pop(address, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - at) * per_s)
        over = left < 1
        self._left[address] = (left if over else left - 1, now)
        if len(self._left) > MAX_ADDRESSES:
            del self._left[next(iter(self._left))]
        return (1 - left) / per_s if over else None
