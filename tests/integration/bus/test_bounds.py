"""What happens at the bound of every stream: what may be lost is, what may not is not, and whoever sends is told."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from libs.bus import Bus, Delivery, Full, NatsTransport, Park, Room, Unanswered
from libs.bus.topology import STREAMS
from libs.events.commands import CordonNode
from libs.events.machine import MachineSample
from libs.events.policy import Check
from libs.events.usage import RequestRecord, UsageBatch
from libs.testing import eventually
from services.accounting.stream_retention import StreamRetention, droppable_before
from services.gateway.usage.publisher import Publisher
from services.gateway.usage.spool import Spool

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOUND = 64 * 1024
TRIED_FOR_S = 0.3


@pytest.fixture(autouse=True)
def _tried_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.bus.bus.RETRY_FOR_S", TRIED_FOR_S)


async def bounded(bus: Bus, stream: str) -> None:
    """Give a stream so small a bound that a test reaches it. Everything else is as the topology says."""
    transport = bus.transport
    assert isinstance(transport, NatsTransport)
    config = next(one.config for one in STREAMS if one.name == stream)
    await transport.api(f"STREAM.UPDATE.{stream}", config | {"max_bytes": BOUND})


def test_every_stream_without_a_bound_of_its_own_keeps_state() -> None:
    """What has none is the log, and the buckets, which hold one value for each key: their bound is the disk."""
    unbounded = {one.name for one in STREAMS if one.config["max_bytes"] == -1}
    buckets = {one.name for one in STREAMS if one.name.startswith("KV_")}
    assert unbounded == {"EVENTS"} | buckets
    assert {one.config["max_msgs_per_subject"] for one in STREAMS if one.name in buckets} == {1}


# usage


def batch(offset: int) -> UsageBatch:
    record = RequestRecord(
        request_id=f"req-{offset}",
        opened_at=NOW,
        closed_at=NOW,
        key_id="k",
        project="p",
        model_asked="m",
        model="m",
        protocol="openai.chat",
        stream=True,
        status="ok",
    )
    return UsageBatch(gateway_id="g", offset=offset, records=(record,) * 50)


async def fill(bus: Bus) -> int:
    """Append until the stream takes no more; how many it took."""
    for offset in range(1, 1000):
        try:
            await bus.append(batch(offset), cause=f"g:{offset}")
        except Full:
            return offset - 1
    raise AssertionError("the stream has no bound")


async def test_usage_that_is_not_in_the_ledger_is_never_dropped(bus: Bus) -> None:
    await bounded(bus, "USAGE")
    taken = await fill(bus)
    room = await bus.room("USAGE")
    assert (room.first, room.last) == (1, taken)
    assert room.bytes > BOUND / 2

    keeper = StreamRetention(bus, lambda: True, lambda: True)
    await keeper.look()
    assert (await bus.room("USAGE")).first == 1  # nothing of it is in the ledger


async def test_usage_that_is_in_the_ledger_makes_room(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    await bounded(bus, "USAGE")
    taken = await fill(bus)
    entered: list[int] = []

    async def enter(deliveries: list[Delivery]) -> None:
        entered.extend(delivery.sequence for delivery in deliveries)

    keeper = StreamRetention(bus, lambda: True, lambda: True)
    await keeper.look()
    assert "USAGE holds" in caplog.text
    worker = await bus.work("accounting-ledger", enter)
    await eventually(lambda: len(entered) == taken)
    await eventually(lambda: _done(bus, taken))
    # It was acknowledged; whether the ledger still has it, after the database came back from a copy, is to be seen.
    await StreamRetention(bus, lambda: True, lambda: False).look()
    assert (await bus.room("USAGE")).first == 1
    await keeper.look()
    room = await bus.room("USAGE")
    assert BOUND / 8 < room.bytes < BOUND / 2
    # What was left is of use to a ledger that is made anew; what comes is taken again, and entered.
    await bus.append(batch(taken + 1), cause=f"g:{taken + 1}")
    await eventually(lambda: len(entered) == taken + 1)
    await worker.stop()


async def _done(bus: Bus, sequence: int) -> bool:
    return (await bus.progress("accounting-ledger")).done >= sequence


def test_no_more_is_dropped_than_the_ledger_has() -> None:
    assert droppable_before(Room(40, 100, 1, 40), done=40) == 1
    assert droppable_before(Room(80, 100, 1, 80), done=80) == 56
    assert droppable_before(Room(80, 100, 1, 80), done=10) == 10
    assert droppable_before(Room(80, 100, 21, 100), done=20) == 21
    assert droppable_before(Room(80, 100, 1, 80), done=0) == 1
    assert droppable_before(Room(80, -1, 1, 80), done=80) == 1


async def test_gateways_keep_in_their_spools_what_a_full_stream_does_not_take(
    bus: Bus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await bounded(bus, "USAGE")
    taken = await fill(bus)
    spool = Spool(tmp_path / "spool", max_bytes=10**6)
    publisher = Publisher(bus, spool, "other", lambda: None)
    publisher.start()
    for offset in range(100):
        spool.closed(None, batch(offset).records[0])
    await eventually(lambda: "usage waits in the spool" in caplog.text and "maximum bytes" in caplog.text)
    assert spool.backlog_bytes > 0
    assert (await bus.room("USAGE")).last == taken

    await bus.drop("USAGE", before=taken // 2)
    await eventually(lambda: spool.backlog_bytes == 0)
    assert (await bus.room("USAGE")).last > taken
    await publisher.stop()
    spool.close()


# commands, checks, telemetry, what was parked


async def test_a_command_beyond_the_bound_is_told_so_and_those_that_wait_stay(bus: Bus) -> None:
    await bounded(bus, "COMMANDS")
    for number in range(BOUND // 8000):
        with contextlib.suppress(Unanswered):
            await bus.command(CordonNode(machine_id=f"m{number}", reason="x" * 7500), timeout_s=0.01)
    with pytest.raises(Full, match="maximum bytes"):
        await bus.command(CordonNode(machine_id="one-more", reason="x" * 7500), timeout_s=0.01)
    room = await bus.room("COMMANDS")
    assert (room.first, room.last) == (1, BOUND // 8000)


async def test_of_checks_nobody_judges_the_oldest_leave(bus: Bus) -> None:
    await bounded(bus, "CHECKS")
    for number in range(100):
        await bus.tell(
            Check(gateway_id="g", check_id=f"c{number}", request_id="x" * 2000, project="p", policies=(), segments=())
        )
    await eventually(lambda: _last(bus, "CHECKS", 100))
    assert 1 < (await bus.room("CHECKS")).first <= 100


async def test_of_telemetry_the_oldest_leaves(bus: Bus) -> None:
    await bounded(bus, "TELEMETRY")
    for number in range(1000):
        await bus.tell(MachineSample(at=NOW, machine_id=f"m{number}", gpus_reason="x" * 500))
    await eventually(lambda: _last(bus, "TELEMETRY", 1000))
    assert 1 < (await bus.room("TELEMETRY")).first <= 1000


async def _last(bus: Bus, stream: str, sequence: int) -> bool:
    return (await bus.room(stream)).last == sequence


async def test_work_goes_on_where_no_more_can_be_parked(bus: Bus) -> None:
    """The oldest copies leave; the message that could not be handled is out of the way of those behind it."""
    await bounded(bus, "PARKED")
    parked = 0

    async def refuse(deliveries: list[Delivery]) -> None:
        nonlocal parked
        for delivery in deliveries:
            if isinstance(delivery.message, UsageBatch) and delivery.message.gateway_id == "bad":
                parked += 1
                raise Park("cannot be read")

    worker = await bus.work("accounting-ledger", refuse, batch=1)
    records = batch(1).records
    for offset in range(1, 12):
        await bus.append(UsageBatch(gateway_id="bad", offset=offset, records=records), cause=f"b{offset}")
    await bus.append(batch(1), cause="good")
    await eventually(lambda: _done(bus, 12))
    assert parked == 11
    room = await bus.room("PARKED")
    assert room.last == 11
    assert room.first > 1
    await worker.stop()
