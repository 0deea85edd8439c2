"""The bus: the only way services speak to each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from . import topology
from .authority import Authority
from .bus import Bus, Fence
from .delivery import Delivery
from .follow import Follower
from .nats_connection import BusSettings
from .nats_transport import NatsTransport
from .owned_view import Overtaken, OwnedView
from .snapshot import Snapshot
from .supervision import supervise
from .topology import NoRoom
from .transport import AskFailed, BusAway, BusError, Full, Misconfigured, NotLeader, Room, TooLarge, Unanswered
from .view import View
from .work import Again, Park, Worker

log = logging.getLogger("llmgw.bus")


async def connect(settings: BusSettings, trouble: Callable[[str], None] = lambda why: None) -> Bus:
    """Connect under an identity, waiting until the bus answers; ``trouble`` is told what keeps it from that. Raises
    Misconfigured for a server too old.
    """
    transport = await NatsTransport.connect(
        settings.url, settings.identity, settings.credentials, settings.name or settings.identity, trouble
    )
    bus = Bus(transport)
    transport.on_failure = bus.fail
    return bus


async def ensure(
    bus: Bus, replicas: int | None = None, usage_bytes: int | None = None, most_usage_bytes: int = topology.USAGE_BYTES
) -> list[str]:
    """``topology.ensure`` of what this version needs. Raises Misconfigured, NoRoom."""
    assert isinstance(bus.transport, NatsTransport)
    return await topology.ensure(bus.transport, replicas, usage_bytes, most_usage_bytes)


async def missing(bus: Bus) -> list[str]:
    """What of the topology is not there or not as it should be."""
    assert isinstance(bus.transport, NatsTransport)
    return await topology.missing(bus.transport)


async def verify(bus: Bus, waiting: Callable[[str], None] = lambda why: None) -> None:
    """Wait until the topology is there, or what of it this identity may look at; ``waiting`` is told for what."""
    assert isinstance(bus.transport, NatsTransport)
    only = topology.SEEN_BY_NODES if bus.identity.startswith("node-") else None
    await topology.verify(bus.transport, only, waiting)


async def keep(bus: Bus) -> None:
    """Runs for ever: makes the volatile stream this identity keeps again whenever a restarted server lost it."""
    name = topology.KEEPERS.get(bus.identity)
    assert isinstance(bus.transport, NatsTransport)
    while name is not None:
        bus.transport.renewed.clear()
        try:
            for done in await topology.restore(bus.transport, name):
                log.info("%s, which a restarted server had lost", done)
        except BusError as error:
            log.warning("%s could not be looked after: %s", name, error)
            await asyncio.sleep(1)
            continue
        await bus.transport.renewed.wait()


__all__ = [
    "Again",
    "AskFailed",
    "Authority",
    "Bus",
    "BusAway",
    "BusError",
    "BusSettings",
    "Delivery",
    "Fence",
    "Follower",
    "Full",
    "Misconfigured",
    "NatsTransport",
    "NoRoom",
    "NotLeader",
    "Overtaken",
    "OwnedView",
    "Park",
    "Room",
    "Snapshot",
    "TooLarge",
    "Unanswered",
    "View",
    "Worker",
    "connect",
    "ensure",
    "keep",
    "missing",
    "supervise",
    "verify",
]
