from __future__ import annotations

from cli.cluster import Cluster
from cli.output import Quiet
from cli.status import bus_state
from libs.bus import Bus, NatsTransport
from libs.bus.topology import STREAMS


async def test_a_stream_over_half_full_and_one_of_another_version_are_said(bus: Bus) -> None:
    cluster = Cluster(bus=bus, out=Quiet(), home=None)
    assert await bus_state(cluster) == "answers"

    transport = bus.transport
    assert isinstance(transport, NatsTransport)
    usage = next(one.config for one in STREAMS if one.name == "USAGE")
    await transport.api("STREAM.UPDATE.USAGE", usage | {"max_bytes": 2_000_000})
    for number in range(12):
        await transport.store("llmgw.use.gateway.g.batch", bytes(100_000), {"Nats-Msg-Id": str(number)})
    said = await bus_state(cluster)
    assert said.startswith("stream USAGE is over half full (1 of at most 2 MB) of usage the ledger does not have")

    await transport.api("STREAM.UPDATE.USAGE", usage | {"discard": "old"})
    assert "is not as this version needs it: stream USAGE: discard is 'old' instead of 'new'" in await bus_state(
        cluster
    )
