from __future__ import annotations

from collections.abc import Awaitable, Callable

from libs.bus import Bus, verify
from libs.bus.memory import MemoryCluster


async def test_bus_has_its_topology(bus: Bus, connect_as: Callable[[str], Awaitable[Bus]]) -> None:
    await verify(bus)
    assert (bus.identity, (await connect_as("guard")).identity) == ("operator", "guard")


async def test_memory_bus(memory_bus: Bus, memory_cluster: MemoryCluster) -> None:
    assert memory_bus.connected
    assert memory_cluster.bus("guard").identity == "guard"
