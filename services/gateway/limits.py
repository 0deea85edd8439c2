"""Requests and tokens a minute: who is over, and what clients are told of what is left."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from libs.events.views import KeyView

from .call import Call, Headers
from .core import errors
from .core.errors import Protocol
from .core.windows import Counts, Refusal
from .rates import Rates

NEAR = 0.2
FEW = 5
"""With so little of a limit left (a share, or requests) the other gateways are told at once."""

Unit = Literal["requests", "tokens"]


class _Level(NamedTuple):
    """One limit that holds for a request."""

    whose: str
    unit: Unit
    limit: int
    left: int
    over: Refusal | None

    @property
    def reset_s(self) -> int:
        """When one more fits; where one still does, when all that is counted now has left at the latest."""
        if self.over is not None:
            return math.ceil(self.over.retry_after_s)
        return 60 if self.left < self.limit else 0


class Limits:
    """The limits of keys and projects, over all gateways."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates

    def admit(self, call: Call, key: KeyView) -> None:
        """Count the request, and tell the client what is left. Raises Fault (429) over a limit; then nothing counts."""
        now = time.monotonic()
        requests, tokens = self._rates.requests, self._rates.tokens
        whose = f"The project '{key.project}'"
        levels = [
            *_level("This key", "requests", requests, key.key_id, key.rpm, now),
            *_level(whose, "requests", requests, key.project, key.project_rpm, now),
            *_level("This key", "tokens", tokens, key.key_id, key.tpm, now),
            *_level(whose, "tokens", tokens, key.project, key.project_tpm, now),
        ]
        if levels:
            call.headers += headers(levels, call.protocol, call.started_at)
            for level in levels:
                if level.over is not None:
                    raise errors.over_rate(level.whose, level.limit, level.unit, level.over.retry_after_s, ())
            if any(level.left <= max(FEW, level.limit * NEAR) for level in levels):
                self._rates.hurry()
        requests.add(key.key_id, now)
        requests.add(key.project, now)


def _level(whose: str, unit: Unit, counts: Counts, name: str, limit: int | None, now: float) -> tuple[_Level, ...]:
    if limit is None:
        return ()
    over = counts.over(name, limit, now)
    this = 1 if unit == "requests" and over is None else 0
    return (_Level(whose, unit, limit, max(0, limit - counts.used(name, now) - this), over),)


def headers(levels: list[_Level], protocol: Protocol, now: datetime) -> Headers:
    """Of each unit the limit that is nearest, as the protocol's own clients read it."""
    found: Headers = []
    for unit in ("requests", "tokens"):
        of_unit = [level for level in levels if level.unit == unit]
        if not of_unit:
            continue
        nearest = min(of_unit, key=lambda level: (level.over is None, level.left))
        reset = f"{nearest.reset_s}s"
        name = "x-ratelimit-{what}-{unit}"
        if protocol == "anthropic":
            name = "anthropic-ratelimit-{unit}-{what}"
            reset = (now + timedelta(seconds=nearest.reset_s)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for what, value in (("limit", str(nearest.limit)), ("remaining", str(nearest.left)), ("reset", reset)):
            found.append((name.format(what=what, unit=unit).encode(), value.encode()))
    return found
