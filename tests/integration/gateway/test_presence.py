from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from libs.bus import Bus, Misconfigured
from libs.testing import eventually
from services.gateway.cluster import presence
from services.gateway.cluster.presence import Presence

Connect = Callable[[str], Awaitable[Bus]]


async def test_a_second_gateway_of_an_id_does_not_start_while_the_first_runs(
    connect_as: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "PATIENCE_S", 0.5)
    first = Presence(await connect_as("gateway"), "g-1", tmp_path / "a")
    await first.begin()
    bus = await connect_as("gateway")
    second = Presence(bus, "g-1", tmp_path / "b")
    with pytest.raises(Misconfigured, match=rf"another gateway runs as g-1, on \S+ with the spool {tmp_path}/a"):
        await second.begin()
    await Presence(bus, "g-2", tmp_path / "b").begin()

    await first.stop()
    await second.begin()
    await second.stop()


async def test_one_that_was_killed_begins_again_at_once(
    connect_as: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same spool, with what it left on the bus still there."""
    monkeypatch.setattr(presence, "PATIENCE_S", 0.5)
    killed = Presence(await connect_as("gateway"), "g-1", tmp_path)
    await killed.begin()
    again = Presence(await connect_as("gateway"), "g-1", tmp_path)
    await again.begin()
    await again.stop()


async def test_one_that_lost_its_id_to_another_ends(connect_as: Connect, tmp_path: Path) -> None:
    """It was cut off for longer than its claim lasts; meanwhile the other began."""
    bus = await connect_as("gateway")
    first = Presence(bus, "g-1", tmp_path / "a")
    await first.begin()
    operator = await connect_as("operator")
    await operator.transport.store("$KV.leases.gateway.g-1", b"", {"KV-Operation": "DEL"})
    second = Presence(await connect_as("gateway"), "g-1", tmp_path / "b")
    await second.begin()
    await eventually(bus.failed.is_set, 15)
    assert "another gateway runs as g-1" in bus.failure
    await first.stop()
    await second.stop()
