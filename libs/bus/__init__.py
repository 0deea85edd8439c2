"""The bus: the only way services speak to each other."""

from __future__ import annotations

from . import topology
from .authority import Authority
from .bus import Bus, BusSettings, Fence, NotLeader, Unanswered
from .delivery import Delivery
from .follow import Follower
from .nats_transport import NatsTransport
from .owned import Overtaken, OwnedView
from .snapshot import Snapshot
from .transport import AskFailed, BusAway, BusError, Misconfigured
from .view import View
from .work import Again, Park, Worker


async def connect(settings: BusSettings) -> Bus:
    """Connect under an identity, waiting until the bus answers. Raises Misconfigured for a server too old."""
    transport = await NatsTransport.connect(
        settings.url, settings.identity, settings.credentials, settings.name or settings.identity
    )
    bus = Bus(transport)
    transport.on_failure = bus.fail
    return bus


async def ensure(bus: Bus, replicas: int = 1) -> list[str]:
    """Create or change streams, buckets and consumers to what the topology says; returns what was done.

    Raises Misconfigured when the server did not take an option.
    """
    assert isinstance(bus.transport, NatsTransport)
    return await topology.ensure(bus.transport, replicas)


async def verify(bus: Bus) -> None:
    """Wait until the topology is there, saying what is waited for."""
    assert isinstance(bus.transport, NatsTransport)
    await topology.verify(bus.transport)


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
    "Misconfigured",
    "NatsTransport",
    "NotLeader",
    "Overtaken",
    "OwnedView",
    "Park",
    "Snapshot",
    "Unanswered",
    "View",
    "Worker",
    "connect",
    "ensure",
    "verify",
]
