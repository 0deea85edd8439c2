"""Requests and tokens a minute: a sliding window here, plus what the other gateways say of theirs.

Counts are kept in one-second buckets and leave when the whole bucket is over a minute old, so that in no
60 seconds more is admitted than the limit. Across gateways the excess is what all of them admit between
two of their reports.
"""

from __future__ import annotations

from collections.abc import Mapping

SPAN_S = 61
"""A minute and the bucket being filled."""
SILENT_S = 10.0
"""A gateway not heard for so long stops counting: it is gone, and so are its requests."""


class Window:
    """What was counted in the last minute."""

    __slots__ = ("_buckets", "_second", "_total")

    def __init__(self) -> None:
        self._buckets = [0] * SPAN_S
        self._second = 0
        self._total = 0

    def add(self, now: float, amount: int = 1) -> None:
        self.total(now)
        self._buckets[self._second % SPAN_S] += amount
        self._total += amount

    def total(self, now: float) -> int:
        """``now`` is in seconds and never falls."""
        second = int(now)
        passed = second - self._second
        if passed > 0:
            if not self._total:
                pass
            elif passed >= SPAN_S:
                self._buckets = [0] * SPAN_S
                self._total = 0
            else:
                for gone in range(self._second + 1, second + 1):
                    self._total -= self._buckets[gone % SPAN_S]
                    self._buckets[gone % SPAN_S] = 0
            self._second = second
        return self._total

    def frees(self, now: float, amount: int) -> float:
        """Seconds until ``amount`` of what is counted has left; a minute when it is not here."""
        self.total(now)
        left = amount
        for age in range(SPAN_S - 1, -1, -1):
            left -= self._buckets[(self._second - age) % SPAN_S]
            if left <= 0:
                return self._second - age + SPAN_S - now
        return 60.0


class Refusal:
    """Over a limit: whose, and when there is room again."""

    __slots__ = ("limit", "name", "retry_after_s")

    def __init__(self, name: str, limit: int, retry_after_s: float) -> None:
        self.name = name
        self.limit = limit
        self.retry_after_s = retry_after_s


class Counts:
    """One kind of count (requests, or tokens) by name: a key id, or a project's path."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self._others: dict[str, int] = {}
        self._by_gateway: dict[str, Mapping[str, int]] = {}

    def used(self, name: str, now: float) -> int:
        """In the whole cluster, as far as it is known here."""
        window = self._windows.get(name)
        return (window.total(now) if window else 0) + self._others.get(name, 0)

    def others(self, name: str) -> int:
        """As the other gateways last said."""
        return self._others.get(name, 0)

    def add(self, name: str, now: float, amount: int = 1) -> None:
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = Window()
        window.add(now, amount)

    def over(self, name: str, limit: int, now: float) -> Refusal | None:
        """Whether one more would be over ``limit``."""
        excess = self.used(name, now) + 1 - limit
        if excess <= 0:
            return None
        window = self._windows.get(name)
        return Refusal(name, limit, window.frees(now, excess) if window and limit > 0 else 60.0)

    def local(self, now: float) -> dict[str, int]:
        """What this gateway tells the others; windows that ran empty are forgotten on the way."""
        totals = {}
        for name, window in list(self._windows.items()):
            if total := window.total(now):
                totals[name] = total
            else:
                del self._windows[name]
        return totals

    def heard(self, gateway_id: str, counts: Mapping[str, int]) -> None:
        """Another gateway's report replaces its last one; an empty one forgets it."""
        for name, amount in self._by_gateway.pop(gateway_id, {}).items():
            left = self._others[name] - amount
            if left:
                self._others[name] = left
            else:
                del self._others[name]
        if counts:
            self._by_gateway[gateway_id] = dict(counts)
            for name, amount in counts.items():
                self._others[name] = self._others.get(name, 0) + amount
