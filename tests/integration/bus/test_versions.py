"""A state made by one version of llmgw starts under another: streams and consumers are changed in place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from libs.bus import Bus, BusSettings, NatsTransport, connect, ensure, verify
from libs.bus import topology as topologies
from libs.bus.topology import NOW, SECOND, Consumer, Stream, Topology
from libs.events.commands import CordonNode
from libs.events.usage import UsageBatch
from libs.testing import eventually
from libs.testing.nats import NatsServer

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDED = sorted((GOLDEN / "topologies").glob("*.json"))
STREAM_OF = {"cmd": "COMMANDS", "use": "USAGE", "chk": "CHECKS"}


def recorded(file: Path) -> Topology:
    """A topology as a version asked for it."""
    streams, consumers = [], []
    for name, config in json.loads(file.read_text()).items():
        if not name.startswith("consumer "):
            streams.append(Stream(name, config))
            continue
        subjects = tuple(config["filter_subjects"])
        consumer = Consumer(
            config["durable_name"],
            STREAM_OF[subjects[0].split(".")[1]],
            subjects,
            config["ack_wait"] / SECOND,
            config["max_ack_pending"],
        )
        assert consumer.config == config, "a consumer's option that is new here: tell this test of it"
        consumers.append(consumer)
    return Topology(tuple(streams), tuple(consumers))


async def wrong(bus: Bus, wanted: Topology) -> list[str]:
    transport = bus.transport
    assert isinstance(transport, NatsTransport)
    found: list[str] = []
    for name, config, info in [
        *((one.name, one.config, f"STREAM.INFO.{one.name}") for one in wanted.streams),
        *((one.durable, one.config, f"CONSUMER.INFO.{one.stream}.{one.durable}") for one in wanted.consumers),
    ]:
        there: dict[str, Any] = (await transport.api(info))["config"]
        found += [f"{name}: {text}" for text in topologies.differences(config, there)]
    return found


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
async def test_a_state_of_an_earlier_version_starts_and_goes_back_and_starts_again(
    file: Path, nats_server: NatsServer
) -> None:
    """What is stored survives every step, and each step needs one call."""
    earlier = recorded(file)
    usage_bytes = next(one.config["max_bytes"] for one in earlier.streams if one.name == "USAGE")
    bus = await connect(BusSettings(url=nats_server.url))
    transport = bus.transport
    assert isinstance(transport, NatsTransport)

    async def set_up(topology: Topology) -> None:
        # A version comes with a start of everything; of what it found, a server answers changes differently.
        await asyncio.to_thread(nats_server.restart)
        await eventually(lambda: bus.connected)
        await topologies.ensure(transport, usage_bytes=usage_bytes, topology=topology)
        assert not [text for text in await wrong(bus, topology) if not text.startswith("USAGE: max_bytes")]

    await set_up(earlier)
    await bus.append(UsageBatch(gateway_id="g", offset=1, records=()), cause="u")
    command = CordonNode(machine_id="m")
    await transport.store("llmgw.cmd.scheduler.cordon_node", b'{"type":"cmd.scheduler.cordon_node.v1"}', {})
    for topology in (NOW, earlier, NOW):
        await set_up(topology)
        assert await bus.transport.message("USAGE", 1) is not None
        assert await bus.transport.message("COMMANDS", 1) is not None, command
    assert await ensure(bus) == []
    await bus.close()


def test_the_versions_before_this_one_are_recorded() -> None:
    """Before a stream's, a bucket's or a consumer's setting changes, what it was is kept here."""
    assert len(RECORDED) >= 2


async def test_what_a_server_did_not_take_is_said_by_what_it_has(nats_server: NatsServer) -> None:
    """A stream's storage cannot be changed: here the reply is an error, and it names the stream and the reason."""
    bus = await connect(BusSettings(url=nats_server.url))
    transport = bus.transport
    assert isinstance(transport, NatsTransport)
    await ensure(bus)
    events = next(stream for stream in NOW.streams if stream.name == "EVENTS")
    changed = Topology((Stream("EVENTS", events.config | {"storage": "memory"}),), ())
    with pytest.raises(Exception, match=r"STREAM.UPDATE.EVENTS: .*storage"):
        await topologies.ensure(transport, topology=changed)
    await bus.close()


async def test_a_service_says_what_it_waits_for(nats_server: NatsServer) -> None:
    bus = await connect(BusSettings(url=nats_server.url, identity="scheduler"))
    assert isinstance(bus.transport, NatsTransport)
    await topologies.ensure(bus.transport, topology=recorded(RECORDED[-1]))
    told: list[str] = []
    waiting = asyncio.create_task(verify(bus, told.append))
    await eventually(lambda: told)
    assert told[0].startswith("`llmgw bus init`: stream USAGE: discard is 'old' instead of 'new'")
    await ensure(bus)
    await asyncio.wait_for(waiting, 5)
    await bus.close()
