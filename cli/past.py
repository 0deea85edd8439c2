"""The log up to a time, read by commands that ask what was, and what would be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from cli.cluster import Cluster
from libs.bus import Delivery
from libs.events.contract import Event
from libs.events.machine import MachineSample
from libs.events.subjects import pattern_of, plane

READ_S = 600.0


class Time(click.ParamType[datetime]):
    """``2026-11-29T14:03:20``, with or without a time zone; ``14:03`` or ``14:03:20`` of today; ``20m`` ago."""

    name = "time"
    UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        if text[-1:] in self.UNITS and text[:-1].isdigit():
            return datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * self.UNITS[text[-1]])
        try:
            if "-" not in text:
                text = f"{datetime.now().astimezone():%Y-%m-%d}T{text}"
            at = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{value!r} is not a time: say 2026-11-29T14:03:20, 14:03:20, or 20m for 20 minutes ago")
        return (at if at.tzinfo is not None else at.astimezone()).astimezone(UTC)


TIME = Time()


async def events_until(cluster: Cluster, last: int, until: datetime | None = None) -> list[tuple[int, Event]]:
    """The events of the log up to a sequence, and up to a time, with their sequences."""
    happened: list[tuple[int, Event]] = []

    async def keep(delivery: Delivery) -> None:
        wanted = delivery.sequence <= last and (until is None or delivery.time <= until)
        if wanted and isinstance(delivery.message, Event):
            happened.append((delivery.sequence, delivery.message))

    follower = await cluster.bus.follow("EVENTS", [plane("evt")], keep)
    await follower.reached(last, timeout_s=READ_S)
    await follower.stop()
    return happened


async def last_samples(cluster: Cluster) -> list[MachineSample]:
    """What every machine measured last."""
    samples: dict[str, MachineSample] = {}

    async def keep(delivery: Delivery) -> None:
        if isinstance(delivery.message, MachineSample):
            samples[delivery.message.machine_id] = delivery.message

    follower = await cluster.bus.follow("TELEMETRY", [pattern_of(MachineSample)], keep, start="last")
    await follower.caught_up.wait()
    await follower.stop()
    return list(samples.values())
