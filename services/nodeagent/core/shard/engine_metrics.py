"""Figures from an engine's ``/metrics`` page."""

from __future__ import annotations

import math

import msgspec


class MetricNames(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine calls the figures the agent reads."""

    running: str
    waiting: str
    tokens: str
    """Tokens generated since it started."""
    kv_used: str | None = None
    """A share, 0 to 1."""
    progress: tuple[str, ...] = ()
    """Counters of which at least one moves while the engine works, whatever the work is."""


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What the page said. What it does not say is None."""

    running: int | None = None
    waiting: int | None = None
    tokens: int | None = None
    kv_used: float | None = None
    progress: float | None = None
    """The sum of the progress counters: only whether it moves means something."""


def samples(page: str) -> dict[str, float]:
    """Every metric of a Prometheus text page, summed over its labels. Lines that are not samples are skipped."""
    totals: dict[str, float] = {}
    for line in page.splitlines():
        if not line or line[0] == "#":
            continue
        brace, end = line.find("{"), line.rfind("}")
        if brace != -1 and end > brace:
            name, rest = line[:brace], line[end + 1 :]
        else:
            name, _, rest = line.partition(" ")
        try:
            value = float(rest.split()[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(value):  # NaN stands for what is not known
            totals[name] = totals.get(name, 0.0) + value
    return totals


def read(page: str, names: MetricNames) -> Readings:
    """The figures the agent needs from an engine's page."""
    figures = samples(page)

    def whole(name: str) -> int | None:
        return int(figures[name]) if name in figures else None

    moving = [figures[name] for name in (*names.progress, names.tokens) if name in figures]
    return Readings(
        running=whole(names.running),
        waiting=whole(names.waiting),
        tokens=whole(names.tokens),
        kv_used=figures.get(names.kv_used) if names.kv_used else None,
        progress=sum(moving) if moving else None,
    )
