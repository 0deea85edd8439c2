"""The log and the newest telemetry, read by commands."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from cli.cluster import Cluster
from cli.failure import Failed
from libs.bus import Delivery, Misconfigured
from libs.events.contract import Event
from libs.events.machine import MachineSample
from libs.events.subjects import pattern_of, plane

READ_S = 600.0


async def last_sequence(cluster: Cluster, stream: str) -> int:
    """The last sequence of a stream; 0 when it is empty."""
    info = await _api(cluster, f"STREAM.INFO.{stream}")
    return int(info["state"]["last_seq"])


async def _api(cluster: Cluster, call: str) -> dict[str, Any]:
    """A JetStream call. Raises Failed."""
    try:
        answer: dict[str, Any] = await cluster.bus.transport.api(call)  # type: ignore[attr-defined]
        return answer
    except Misconfigured as error:
        raise Failed(f"{error}: has `llmgw bus init` been run?") from None


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
