"""The bus when servers die and networks misbehave."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from libs.bus import Bus, BusAway, BusSettings, Delivery, connect, ensure, keep, verify
from libs.events.node import NodeJoined
from libs.events.policy import Check
from libs.events.usage import UsageBatch
from libs.events.views import LibraryEntry
from libs.testing import eventually
from libs.testing.nats import NatsServer
from libs.testing.proxy import TcpProxy

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENTRY = LibraryEntry(name="x", versions={}, latest="1")


def joined(name: str) -> NodeJoined:
    return NodeJoined(at=NOW, machine_id=name)


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


async def test_a_killed_server_loses_nothing_and_everybody_goes_on(bus: Bus, nats_server: NatsServer) -> None:
    followed: list[str] = []
    worked: list[int] = []
    viewed: dict[str, LibraryEntry | None] = {}

    async def follow(delivery: Delivery) -> None:
        assert isinstance(delivery.message, NodeJoined)
        followed.append(delivery.message.machine_id)

    async def work(deliveries: list[Delivery]) -> None:
        worked.extend(d.message.offset for d in deliveries if isinstance(d.message, UsageBatch))

    async def watch(key: str, value: LibraryEntry | None) -> None:
        viewed[key] = value

    await bus.follow("EVENTS", ["llmgw.evt.>"], follow)
    await bus.work("accounting-ledger", work)
    view = bus.view("library", LibraryEntry)
    watching = await view.watch(watch)
    for i in range(5):
        await bus.append(joined(f"before-{i}"), cause=f"b{i}")
        await bus.append(UsageBatch(gateway_id="g", offset=i, records=()), cause=f"u{i}")
    await view.put("before", ENTRY)
    await eventually(lambda: len(followed) == 5 and len(set(worked)) == 5 and "before" in viewed)

    await asyncio.to_thread(nats_server.kill)
    # Asked for while the server is away: it is tried until the server is back.
    late = asyncio.ensure_future(bus.append(joined("during"), cause="d"))
    await bus.tell(joined("dropped"))
    await asyncio.to_thread(nats_server.start)
    await late
    for i in range(5):
        await bus.append(joined(f"after-{i}"), cause=f"a{i}")
        await bus.append(UsageBatch(gateway_id="g", offset=10 + i, records=()), cause=f"v{i}")
    await view.put("after", ENTRY)
    expected = [*(f"before-{i}" for i in range(5)), "during", *(f"after-{i}" for i in range(5))]
    await eventually(lambda: followed == expected, deadline_s=15)
    await eventually(lambda: {10, 11, 12, 13, 14} <= set(worked), deadline_s=15)
    await eventually(lambda: viewed == {"before": ENTRY, "after": ENTRY}, deadline_s=15)
    await watching.stop()


async def test_a_key_deleted_while_the_reader_was_cut_off_is_reported_gone(bus: Bus, far: Bus, proxy: TcpProxy) -> None:
    view = bus.view("library", LibraryEntry)
    seen: dict[str, LibraryEntry | None] = {}

    async def on_change(key: str, value: LibraryEntry | None) -> None:
        seen[key] = value

    await view.put("stays", ENTRY)
    await view.put("goes", ENTRY)
    watch = await far.view("library", LibraryEntry).watch(on_change)
    await eventually(lambda: len(seen) == 2)
    await proxy.refuse()
    await view.delete("goes")
    # As if even the marker had been cleaned up: only listing again can show it.
    await bus.transport.api("STREAM.PURGE.KV_library", {"filter": "$KV.library.goes"})  # type: ignore[attr-defined]
    await proxy.heal()
    await eventually(lambda: seen == {"stays": ENTRY, "goes": None}, deadline_s=15)
    await watch.stop()


async def test_a_frozen_network_is_noticed_and_reading_goes_on(bus: Bus, far: Bus, proxy: TcpProxy) -> None:
    seen: list[str] = []

    async def handle(delivery: Delivery) -> None:
        assert isinstance(delivery.message, NodeJoined)
        seen.append(delivery.message.machine_id)

    follower = await far.follow("EVENTS", ["llmgw.evt.>"], handle)
    await follower.caught_up.wait()
    proxy.freeze()
    await bus.append(joined("a"), cause="1")
    with pytest.raises(TimeoutError):
        await follower.reached(1, timeout_s=0.5)
    await proxy.cut()
    await proxy.heal()
    await eventually(lambda: seen == ["a"], deadline_s=20)


async def test_an_append_whose_answer_was_lost_stands_once(bus: Bus, far: Bus, proxy: TcpProxy) -> None:
    proxy.delay(0.4)
    asked = asyncio.ensure_future(far.append(joined("m"), cause="once"))
    # The request arrives; its answer is cut off on the way back.
    await eventually(lambda: bus.transport.last("EVENTS", "llmgw.evt.node.m.joined"))
    await proxy.cut()
    proxy.delay(0)
    assert await asked == 1
    info = await bus.transport.api("STREAM.INFO.EVENTS")  # type: ignore[attr-defined]
    assert info["state"]["messages"] == 1


async def test_an_append_gives_up_after_its_time_and_says_the_bus_is_away(
    bus: Bus, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libs.bus.bus.RETRY_FOR_S", 0.5)
    await asyncio.to_thread(nats_server.kill)
    with pytest.raises(BusAway):
        await bus.append(joined("m"), cause="x")
    await asyncio.to_thread(nats_server.start)


async def test_nothing_can_be_deleted_from_the_log(bus: Bus) -> None:
    await bus.append(joined("m"), cause="x")
    api = bus.transport.api  # type: ignore[attr-defined]
    with pytest.raises(Exception, match=r"10057|not permitted|10056|delete"):
        await api("STREAM.MSG.DELETE.EVENTS", {"seq": 1})
    with pytest.raises(Exception, match=r"not permitted|purge"):
        await api("STREAM.PURGE.EVENTS")
    assert await bus.transport.message("EVENTS", 1) is not None


async def test_a_cancelled_wait_for_a_pong_leaves_the_connection_alive(bus: Bus) -> None:
    client = bus.transport.client  # type: ignore[attr-defined]
    for _ in range(3):
        waiting = asyncio.create_task(client.flush())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await asyncio.wait_for(bus.append(joined("m"), cause="x"), 5) == 1


async def test_a_read_loop_that_died_is_started_again(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    client = bus.transport.client  # type: ignore[attr-defined]
    before = client._reading_task

    async def fails(data: bytes) -> None:
        monkeypatch.undo()
        raise RuntimeError("something nobody thought of")

    monkeypatch.setattr(client._ps, "parse", fails)
    await eventually(lambda: client._reading_task is not before and client.is_connected, deadline_s=15)
    assert await asyncio.wait_for(bus.append(joined("m"), cause="x"), 5) == 1


async def test_an_older_server_is_refused() -> None:
    """Speaks just the greeting of a server as old as Debian's."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576,"headers":true}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Exception, match=r"is 2\.9\.10; llmgw needs 2\.12\.1 or newer"):
        await connect(BusSettings(url=f"nats://127.0.0.1:{port}"))
    server.close()
    await server.wait_closed()


async def test_what_a_killed_server_forgot_is_made_again_by_its_keeper_and_others_need_not_wait(
    bus: Bus, nats_server: NatsServer
) -> None:
    guard = await connect(BusSettings(url=nats_server.url, identity="guard"))
    keeping = asyncio.create_task(keep(guard))
    judged: list[str] = []

    async def judge(deliveries: list[Delivery]) -> None:
        judged.extend(d.message.check_id for d in deliveries if isinstance(d.message, Check))

    await guard.work("guard-checks", judge)
    await asyncio.to_thread(nats_server.kill)
    await asyncio.to_thread(nats_server.start)
    await asyncio.wait_for(verify(bus), 10)
    checks = (str(number) for number in itertools.count())

    async def one_is_judged() -> bool:
        check_id = next(checks)
        await bus.tell(Check(gateway_id="g", check_id=check_id, request_id="r", project="p", policies=(), segments=()))
        return bool(judged)

    await eventually(one_is_judged, deadline_s=15, every_s=0.1)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await guard.close()


async def test_bus_init_changes_nothing_the_second_time_and_mends_what_was_changed(bus: Bus) -> None:
    assert await ensure(bus) == []
    api = bus.transport.api  # type: ignore[attr-defined]
    info = await api("STREAM.INFO.TELEMETRY")
    await api("STREAM.UPDATE.TELEMETRY", info["config"] | {"max_age": 60 * 10**9, "duplicate_window": 10**9})
    assert await ensure(bus) == ["updated stream TELEMETRY"]
