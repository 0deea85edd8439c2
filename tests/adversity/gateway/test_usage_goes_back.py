"""The stream USAGE is put back from a copy, or wiped: what a gateway still has in its spool is published once more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from libs.bus import Bus, Delivery, ensure
from libs.events.subjects import plane
from libs.events.usage import UsageBatch
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.gateway.usage.publisher import Publisher
from services.gateway.usage.spool import Spool
from tests.unit.gateway.usage.test_spool import closed


async def in_usage(bus: Bus) -> set[str]:
    """The requests the stream holds now."""
    found: set[str] = set()

    async def keep(delivery: Delivery) -> None:
        assert isinstance(delivery.message, UsageBatch)
        found.update(record.request_id for record in delivery.message.records)

    follower = await bus.follow("USAGE", [plane("use")], keep)
    await follower.caught_up.wait()
    await follower.stop()
    return found


@pytest.mark.parametrize("how", ["wiped", "put back"])
async def test_what_the_stream_forgot_is_published_again(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("services.gateway.usage.publisher.LOOK_EVERY_S", 0.2)
    monkeypatch.setattr("libs.bus.remembered.LOOK_AGAIN_S", 0.1)
    begun = asyncio.Event()
    spool = Spool(tmp_path / "spool", 2**20)
    publisher = Publisher(bus, spool, "gw-1", begun.set)
    publisher.start()
    spool.closed(None, closed("early"))
    await eventually(lambda: _is(bus, {"early"}))
    await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
    await eventually(lambda: bus.connected)
    spool.closed(None, closed("late"))
    await eventually(lambda: _is(bus, {"early", "late"}))
    assert not begun.is_set(), "a restart forgets nothing"
    if how == "wiped":
        await asyncio.to_thread(nats_server.wipe)
        await eventually(lambda: bus.connected)
        await ensure(bus)
    else:
        await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
    await eventually(lambda: _is(bus, {"early", "late"}), 20)
    assert begun.is_set()
    await publisher.stop()
    spool.close()


async def _is(bus: Bus, wanted: set[str]) -> bool:
    return await in_usage(bus) == wanted
