"""Which schedulers and gateways speak, on whatever host they run: they are heard on the bus, nobody lists them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from cli.cluster import Cluster
from libs.bus import Delivery
from libs.events import pattern_of
from libs.events.leadership import SchedulerPulse
from libs.events.sentences.words import count
from libs.events.usage import GatewayRates

SILENT_S = 5.0
"""Schedulers speak each second, gateways twice."""


class Instance(msgspec.Struct, frozen=True):
    """An instance, and how it is."""

    service: str
    instance: str
    state: str
    leads: bool = False


async def running_instances(cluster: Cluster) -> list[Instance]:
    """All that were heard in the last quarter of an hour; the leader first. Raises BusError."""
    instances: dict[tuple[str, str], Instance] = {}

    async def keep(delivery: Delivery) -> None:
        message, silent_s = delivery.message, (datetime.now(UTC) - delivery.time).total_seconds()
        silent = f"silent for {silent_s:.0f} s" if silent_s >= SILENT_S else ""
        if isinstance(message, SchedulerPulse):
            state = silent or ("leads" if message.leads else "stands by")
            instances["scheduler", message.instance] = Instance("scheduler", message.instance, state, state == "leads")
        elif isinstance(message, GatewayRates):
            state = silent or f"{count(sum(message.in_flight.values()), 'request')} in flight"
            instances["gateway", message.gateway_id] = Instance("gateway", message.gateway_id, state)

    patterns = [pattern_of(SchedulerPulse), pattern_of(GatewayRates)]
    reading = await cluster.bus.follow("TELEMETRY", patterns, keep, start="last")
    await reading.caught_up.wait()
    await reading.stop()
    return sorted(
        instances.values(),
        key=lambda instance: (instance.service != "scheduler", not instance.leads, instance.instance),
    )
