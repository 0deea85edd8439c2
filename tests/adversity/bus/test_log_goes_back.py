"""A store that is put back from a copy, or begun anew, under those who read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from libs.bus import Authority, Bus, BusSettings, Delivery, Snapshot, connect, ensure
from libs.bus.follow import Follower
from libs.events.commands import CordonNode
from libs.events.leadership import SchedulerPulse
from libs.events.node import NodeJoined
from libs.events.questions import SchedulerStanding, Standing
from libs.events.subjects import plane
from libs.events.views import LibraryEntry
from libs.testing import eventually
from libs.testing.nats import NatsServer
from libs.testing.proxy import TcpProxy
from tests.contract.bus.test_authority import State, authority

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def proxy(nats_server: NatsServer) -> AsyncIterator[TcpProxy]:
    async with TcpProxy("127.0.0.1", nats_server.port) as proxy:
        yield proxy


@pytest.fixture
async def far(bus: Bus, proxy: TcpProxy) -> AsyncIterator[Bus]:
    """A bus that reaches the server through the proxy; ``bus`` reaches it directly."""
    far = await connect(BusSettings(url=f"nats://127.0.0.1:{proxy.port}", identity="far"))
    yield far
    await far.close()


class Reading:
    """Follows the log and keeps what it read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    async def start(self, bus: Bus) -> Follower:
        return await bus.follow("EVENTS", [plane("evt")], self._keep)

    async def _keep(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, NodeJoined)
        self.read.append(delivery.message.machine_id)


async def join(bus: Bus, *names: str) -> None:
    for name in names:
        await bus.append(NodeJoined(at=NOW, machine_id=name), cause=name)


async def read_to(follower: Follower, sequence: int) -> None:
    await follower.reached(sequence)
    await follower.caught_up.wait()


@pytest.mark.parametrize("after", [3, 8])
async def test_whoever_reads_on_learns_that_the_log_went_back(
    bus: Bus, far: Bus, proxy: TcpProxy, nats_server: NatsServer, tmp_path: Path, after: int
) -> None:
    """The log ends before the place that was read, or has gone past it by then."""
    await join(bus, *(f"m{n}" for n in range(1, 6)))
    await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
    await join(bus, *(f"m{n}" for n in range(6, 11)))
    reading = Reading()
    follower = await reading.start(far)
    await read_to(follower, 10)
    await proxy.refuse()
    await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
    await join(bus, *(f"other{n}" for n in range(after)))
    await proxy.heal()
    await asyncio.wait_for(far.void.wait(), 20)
    assert far.void_because.startswith("EVENTS was put back from a copy")
    assert not follower.caught_up.is_set()
    with pytest.raises(TimeoutError):
        await follower.reached(8, timeout_s=0.2)
    assert reading.read == [f"m{n}" for n in range(1, 11)]  # nothing of the other history was mixed in
    assert not bus.void.is_set()  # it followed nothing
    fresh = Reading()
    await read_to(await fresh.start(bus), 5 + after)
    assert fresh.read == [*(f"m{n}" for n in range(1, 6)), *(f"other{n}" for n in range(after))]


async def test_a_log_made_anew_is_noticed_however_long_it_is(bus: Bus, nats_server: NatsServer) -> None:
    await join(bus, "a", "b")
    reading = Reading()
    await read_to(await reading.start(bus), 2)
    await asyncio.to_thread(nats_server.wipe)
    await eventually(lambda: bus.connected)
    await ensure(bus)
    await join(bus, "x", "y", "z")
    await asyncio.wait_for(bus.void.wait(), 20)
    assert "made anew" in bus.void_because
    assert reading.read == ["a", "b"]


async def test_a_restarted_server_changes_nothing(bus: Bus, nats_server: NatsServer) -> None:
    await join(bus, "a", "b")
    reading = Reading()
    follower = await reading.start(bus)
    await read_to(follower, 2)
    for name in ("c", "d"):
        await asyncio.to_thread(nats_server.restart)
        await join(bus, name)
        await eventually(lambda name=name: reading.read[-1] == name)  # type: ignore[misc]
    assert reading.read == ["a", "b", "c", "d"]
    assert not bus.void.is_set()


async def test_last_words_in_memory_are_heard_again_when_the_server_forgot_them(
    bus: Bus, nats_server: NatsServer
) -> None:
    heard: list[str] = []

    async def hear(delivery: Delivery) -> None:
        assert isinstance(delivery.message, SchedulerPulse)
        heard.append(delivery.message.instance)

    for n in range(5):
        await bus.tell(SchedulerPulse(at=NOW, instance=f"early-{n}"))
    await bus.follow("TELEMETRY", [plane("tel")], hear, start="last")
    await eventually(lambda: len(heard) == 5)
    await asyncio.to_thread(nats_server.restart)
    await eventually(lambda: bus.connected)
    await ensure(bus)
    await bus.tell(SchedulerPulse(at=NOW, instance="late"))
    await eventually(lambda: heard[5:] == ["late"], deadline_s=20)
    assert not bus.void.is_set()


def entry(latest: str) -> LibraryEntry:
    return LibraryEntry(name="x", versions={}, latest=latest)


async def test_a_bucket_that_went_back_is_read_as_it_is_now(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    view = bus.view("library", LibraryEntry)
    seen: dict[str, LibraryEntry | None] = {}

    async def on_change(key: str, value: LibraryEntry | None) -> None:
        seen[key] = value

    for key in ("stays", "changes", "goes"):
        await view.put(key, entry("early"))
    await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
    for key in ("changes", "comes", "goes"):
        await view.put(key, entry("late"))
    await view.delete("goes")
    watch = await view.watch(on_change)
    await watch.caught_up.wait()
    assert seen == {"stays": entry("early"), "changes": entry("late"), "comes": entry("late")}
    seen["goes"] = None
    await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
    await eventually(
        lambda: seen == {"stays": entry("early"), "changes": entry("early"), "comes": None, "goes": entry("early")},
        deadline_s=20,
    )
    # Revisions that were there before the copy was put back, with other values.
    await view.put("changes", entry("other"))
    await view.put("comes", entry("other"))
    await eventually(lambda: (seen["changes"], seen["comes"]) == (entry("other"), entry("other")))
    await watch.stop()


async def test_a_revision_of_the_same_number_with_another_value_is_told(
    bus: Bus, far: Bus, proxy: TcpProxy, nats_server: NatsServer, tmp_path: Path
) -> None:
    view = bus.view("library", LibraryEntry)
    seen: dict[str, LibraryEntry | None] = {}

    async def on_change(key: str, value: LibraryEntry | None) -> None:
        seen[key] = value

    await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
    assert await view.put("x", entry("late")) == 1
    watch = await far.view("library", LibraryEntry).watch(on_change)
    await eventually(lambda: seen == {"x": entry("late")})
    await proxy.refuse()
    await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
    assert await view.put("x", entry("other")) == 1
    await proxy.heal()
    await eventually(lambda: seen == {"x": entry("other")}, deadline_s=20)
    await watch.stop()


async def test_a_leader_whose_log_went_back_ends_and_the_next_one_begins_with_the_log(
    bus: Bus, far: Bus, proxy: TcpProxy, nats_server: NatsServer, tmp_path: Path
) -> None:
    snapshot = Snapshot[State](tmp_path / "state.json", State)
    leader = authority(far, "a", snapshot=snapshot)
    await leader.start()
    await eventually(lambda: leader.leading)
    await bus.command(CordonNode(machine_id="kept"))
    await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
    await eventually(lambda: leader.leading)
    await bus.command(CordonNode(machine_id="lost"))
    first_term = leader.term
    await proxy.refuse()
    await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
    await proxy.heal()
    await asyncio.wait_for(far.void.wait(), 20)
    await eventually(lambda: not leader.leading)
    assert "put back from a copy" in leader.not_ready()[-1]
    await leader.stop()
    await far.close()
    assert not (tmp_path / "state.json").exists()
    following: Authority[State] = authority(bus, "a", snapshot=snapshot)
    await following.start()
    await eventually(lambda: following.leading)
    assert following.term > first_term
    told = (await bus.ask(SchedulerStanding(), Standing)).problems
    assert told[0].startswith("EVENTS was put back from a copy: it ends at ")
    assert (await bus.command(CordonNode(machine_id="other"))).status == "done"
    assert following.state.cordoned == {"kept": "", "other": ""}
    await following.stop()


async def test_an_election_is_later_than_any_before_whatever_the_clock_says(bus: Bus) -> None:
    from libs.events.leadership import SchedulerElected

    ahead = datetime(2100, 1, 1, tzinfo=UTC)
    await bus.append(SchedulerElected(at=ahead, instance="its clock was wrong"), cause="x")
    leader = authority(bus, "a")
    await leader.start()
    await eventually(lambda: leader.leading)
    assert leader.term == int(ahead.timestamp()) * 1_000_000 + 1
    await leader.stop()


async def test_nothing_is_decided_before_it_is_known_that_the_log_is_still_the_same(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its election is older than the copy: the server would take what it decides on events that are gone."""
    far = await connect(BusSettings(url=nats_server.url, identity="scheduler"))
    leader = authority(far, "a")
    await leader.start()
    await eventually(lambda: leader.leading)
    await bus.command(CordonNode(machine_id="kept"))
    first_election = leader.term
    await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
    assert (await bus.command(CordonNode(machine_id="lost"))).status == "done"
    assert leader.term == first_election
    looks = asyncio.Event()
    same_history = Follower._same_history

    async def after_a_while(self: Follower) -> None:
        await looks.wait()
        await same_history(self)

    monkeypatch.setattr(Follower, "_same_history", after_a_while)
    await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
    before = (await bus.transport.extent("EVENTS")).last
    asked = asyncio.ensure_future(bus.command(CordonNode(machine_id="late")))
    await eventually(lambda: far.connected)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asked), 1.5)
    assert (await bus.transport.extent("EVENTS")).last == before
    looks.set()
    await asyncio.wait_for(far.void.wait(), 20)
    await leader.stop()
    await far.close()
    following = authority(bus, "a")
    await following.start()
    assert (await asked).status == "done"
    assert following.state.cordoned == {"kept": "", "late": ""}
    await following.stop()
