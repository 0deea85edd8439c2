"""The bus is wiped, or put back from a copy, under an agent: it says again what is forgotten and leaves engines be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from libs.bus import Bus, Delivery, ensure
from libs.events import Event
from libs.events.machine import MachineRegistered
from libs.events.shard import ShardAdopted, ShardEvent, ShardFailed, ShardReady
from libs.events.subjects import plane
from libs.events.views import Desired
from libs.testing import eventually
from libs.testing.nats import NatsServer
from tests.integration.nodeagent.box import Box
from tests.unit.nodeagent.wanted import shard

LOOKS_OFTEN = """
from libs.bus import remembered
from services.nodeagent.adapters.disk import outbox
outbox.LOOK_EVERY_S, remembered.LOOK_AGAIN_S = 0.2, 0.1
"""


async def events(bus: Bus) -> list[Event]:
    """What the log says now."""
    found: list[Event] = []

    async def keep(delivery: Delivery) -> None:
        assert isinstance(delivery.message, Event)
        found.append(delivery.message)

    follower = await bus.follow("EVENTS", [plane("evt")], keep)
    await follower.caught_up.wait()
    await follower.stop()
    return found


async def says(bus: Bus, *kinds: type[Event]) -> bool:
    return {*kinds} <= {type(event) for event in await events(bus)}


@pytest.mark.parametrize("how", ["wiped", "put back"])
async def test_an_agent_says_again_what_the_log_forgot(
    box: Box, bus: Bus, nats_server: NatsServer, tmp_path: Path, how: str
) -> None:
    await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
    agent = box.start_agent(LOOKS_OFTEN)
    await box.want(shard("r-1-0"), shard("r-2-0", engine="none"))
    await box.next(ShardReady)
    await box.next(ShardFailed)
    engines = box.engine_pids()
    if how == "wiped":
        await asyncio.to_thread(nats_server.wipe)
        await eventually(lambda: bus.connected)
        await ensure(bus)
    else:
        await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
    await eventually(lambda: says(bus, MachineRegistered, ShardAdopted, ShardFailed), 30)
    assert {e.shard_id for e in await events(bus) if isinstance(e, ShardEvent)} == {"r-1-0", "r-2-0"}
    assert box.engine_pids() == engines
    assert agent.poll() is None, "it began anew in its own place"


async def test_an_agent_takes_an_older_generation_of_a_newer_term(box: Box, bus: Bus) -> None:
    box.start_agent()
    box.generation = 900
    await box.want(shard("r-1-0"))
    await box.next(ShardReady)
    await bus.view("desired", Desired).put("box", Desired(machine_id="box", term=7, generation=40))
    await eventually(lambda: box.engine_pids() == {}, 15)
    # What an earlier scheduler still had under way changes nothing any more.
    await box.want(shard("r-1-0"))
    await bus.view("desired", Desired).put("box", Desired(machine_id="box", term=7, generation=41))
    await eventually(lambda: box.records() == {}, 15)
