"""Streams set aside what they may hold: on a small disk that is less, and on one that is too small it is said."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.bus import BusSettings, NoRoom, connect, ensure
from libs.bus.topology import LEAST_USAGE_BYTES, MIB
from libs.testing.nats import NatsServer


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={request.param}m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a file system of its own needs root")
    server = NatsServer(folder / "nats")
    server.start()
    yield server
    server.kill()
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("server", [600], indirect=True)
async def test_usage_holds_what_the_disk_has_room_for_and_keeps_that(server: NatsServer) -> None:
    bus = await connect(BusSettings(url=server.url))
    assert "created stream USAGE, which holds 256 MiB" in await ensure(bus)
    assert (await bus.room("USAGE")).bound == 256 * MIB
    assert await ensure(bus) == []
    with pytest.raises(NoRoom, match=r"no room for the stream USAGE of 1024 MiB"):
        await ensure(bus, usage_bytes=1024 * MIB)
    assert await ensure(bus, usage_bytes=128 * MIB) == ["updated stream USAGE"]
    await asyncio.to_thread(server.restart)
    assert (await bus.room("USAGE")).bound == 128 * MIB
    assert await ensure(bus) == ["created stream CHECKS", "created stream TELEMETRY", "set consumer guard-checks"]
    await bus.close()


@pytest.mark.parametrize("server", [150], indirect=True)
async def test_a_disk_that_is_too_small_is_said(server: NatsServer) -> None:
    bus = await connect(BusSettings(url=server.url))
    with pytest.raises(NoRoom, match=rf"no room for the stream \w+ of {LEAST_USAGE_BYTES // MIB} MiB"):
        await ensure(bus)
    await bus.close()
