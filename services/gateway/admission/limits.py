"""Requests and tokens a minute: who is over, and what clients are told of what is left."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta
from typing import NamedTuple

from libs.events.times import rfc3339
from libs.events.views import KeyView
from services.gateway.cluster.gossip import Gossip
from services.gateway.core import faults
from services.gateway.core.admission.other_hosts import fits
from services.gateway.core.admission.rate_windows import Unit
from services.gateway.core.admission.shared_table import TableFull
from services.gateway.core.errors import Protocol
from services.gateway.core.faults import Fault
from services.gateway.http.exchange import Exchange, Headers

NEAR = 0.2
FEW = 5
"""With so little of a limit left (a share, or requests) other hosts are told at once."""


class _Level(NamedTuple):
    """One limit that holds for a request."""

    whose: str
    unit: Unit
    limit: int
    left: int
    over: float | None
    """Seconds until there is room; None: there is."""
    near: bool
    """Other hosts are to hear of it at once."""

    @property
    def reset_s(self) -> int:
        """When one more fits; where one still does, when all that is counted now has left at the latest."""
        if self.over is not None:
            return math.ceil(self.over)
        return 60 if self.left < self.limit else 0


class Limits:
    """The limits of keys and projects, over all gateways."""

    def __init__(self, gossip: Gossip) -> None:
        self._gossip = gossip

    def refusal(self, exchange: Exchange, key: KeyView) -> Fault | None:
        """Count the request, and tell the client what is left. None: it may go on; else (429, 503) nothing counts."""
        names = limited(key)
        if (names or key.budgets) and self._gossip.stood_still:
            return faults.catching_up()
        if not names:
            return None
        now = time.monotonic()
        counts = self._gossip.counts
        counted: list[str] = []
        try:
            # Counted before it is looked at: of two workers that do it at once at least one sees both.
            for name in names:
                counts.add(name, now, requests=1)
                counted.append(name)
            levels = self._levels(key, now)
        except TableFull:
            self._uncount(counted, now)
            return faults.too_many_names()
        exchange.headers += headers(levels, exchange.protocol, exchange.started_at)
        for level in levels:
            if level.over is not None:
                self._uncount(counted, now)
                return faults.over_rate(level.whose, level.limit, level.unit, level.over, ())
        if any(level.near for level in levels):
            self._gossip.hurry()
        return None

    def _uncount(self, names: list[str], now: float) -> None:
        for name in names:
            self._gossip.counts.add(name, now, requests=-1)

    def _levels(self, key: KeyView, now: float) -> list[_Level]:
        levels = []
        for whose, name, rpm, tpm in (
            ("This key", key.key_id, key.rpm, key.tpm),
            (f"The project '{key.project}'", key.project, key.project_rpm, key.project_tpm),
        ):
            if rpm is None and tpm is None:
                continue
            use = self._gossip.counts.used(name, now)
            if rpm is not None:
                levels.append(self._level(whose, "requests", name, rpm, use.requests, use.new_requests, now))
            if tpm is not None:
                # How many it will be is not known; where there is room for one it goes on.
                level = self._level(whose, "tokens", name, tpm, use.tokens + 1, use.new_tokens + 1, now)
                levels.append(level._replace(left=max(0, tpm - use.tokens)))
        return levels

    def _level(self, whose: str, unit: Unit, name: str, limit: int, used: int, new: int, now: float) -> _Level:
        """``used`` and ``new``: with this request; see ``fits``."""
        hosts = self._gossip.apart(now)
        left = limit - used
        over = None
        if not fits(left, new, 1, hosts):
            over = self._gossip.counts.frees(name, now, unit, max(1, -left)) if limit > 0 else 60.0
        return _Level(whose, unit, limit, max(0, left), over, near=left <= max(FEW, limit * NEAR))


def limited(key: KeyView) -> tuple[str, ...]:
    """Names a request of the key is counted by: those that have a limit."""
    names = (key.key_id,) if key.rpm is not None or key.tpm is not None else ()
    return names if key.project_rpm is None and key.project_tpm is None else (*names, key.project)


def headers(levels: list[_Level], protocol: Protocol, now: datetime) -> Headers:
    """Of each unit the limit that is nearest, as the protocol's own clients read it."""
    lines: Headers = []
    for unit in ("requests", "tokens"):
        of_unit = [level for level in levels if level.unit == unit]
        if not of_unit:
            continue
        nearest = min(of_unit, key=lambda level: (level.over is None, level.left))
        reset = f"{nearest.reset_s}s"
        name = "x-ratelimit-{what}-{unit}"
        if protocol == "anthropic":
            name = "anthropic-ratelimit-{unit}-{what}"
            reset = rfc3339(now + timedelta(seconds=nearest.reset_s))
        for what, value in (("limit", str(nearest.limit)), ("remaining", str(nearest.left)), ("reset", reset)):
            lines.append((name.format(what=what, unit=unit).encode(), value.encode()))
    return lines
