"""Database or bus are wiped, or put back from a copy, and the other is not: no request is lost that either knows, none
counts twice, and it is said what happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from libs.bus import Bus, BusSettings, connect, ensure
from libs.events.questions import AccountingStanding, AskUsage, Standing, UsageAnswer
from libs.events.views import Spend
from libs.testing import eventually
from libs.testing.ledger import inconsistencies
from libs.testing.nats import NatsServer
from libs.testing.postgres import PostgresServer
from services.accounting.adapters.postgres import Ledger, PostgresAway
from services.accounting.app import Accounting, build
from services.accounting.core.spending import Sum
from services.accounting.settings import AccountingSettings
from tests.adversity.accounting.test_accounting_outages import SETUP, Stream

Start = Callable[[], Awaitable[Accounting]]
KEY = "k-aaaaaaaaaa"
BACK_S = 30


@pytest.fixture
async def start(
    nats_server: NatsServer, bus: Bus, postgres_server: PostgresServer, tmp_path: Path
) -> AsyncIterator[Start]:
    """Start accounting, in place of the one before: as a process that begins anew does."""
    running: list[tuple[Accounting, Bus]] = []

    async def stop() -> None:
        while running:
            service, connection = running.pop()
            await service.stop()
            await connection.close()

    async def start() -> Accounting:
        await stop()
        connection = await connect(BusSettings(url=nats_server.url, identity="accounting"))
        settings = AccountingSettings(postgres_dsn=postgres_server.dsn, data_dir=tmp_path / "data", instance="one")
        service = build(settings, connection)
        running.append((service, connection))
        await service.start()
        await eventually(lambda: service.authority.leading, BACK_S)
        return service

    yield start
    await stop()


async def says(bus: Bus, words: str) -> bool:
    return words in "; ".join((await bus.ask(AccountingStanding(), Standing)).problems)


async def in_ledger(stream: Stream, dsn: str) -> None:
    await eventually(lambda: stream.is_in(dsn), BACK_S)
    await eventually(stream.is_spent, BACK_S)
    assert await inconsistencies(dsn) == []


async def cost(bus: Bus) -> int:
    spend = await bus.view("spend", Spend).get(KEY)
    return 0 if spend is None else spend.spent_micros["total"]


async def set_up(bus: Bus) -> None:
    for wish in SETUP:
        assert (await bus.command(wish)).status == "done"


async def test_a_wiped_database_is_counted_anew_from_the_week_the_bus_keeps(
    start: Start, bus: Bus, postgres_server: PostgresServer
) -> None:
    await start()
    await set_up(bus)
    stream = Stream(bus)
    await stream.publish(20)
    await in_ledger(stream, postgres_server.dsn)
    assert not await says(bus, "database")
    publishing = asyncio.create_task(stream.publish(200))
    await asyncio.to_thread(postgres_server.wipe)
    await publishing
    await in_ledger(stream, postgres_server.dsn)
    await eventually(lambda: says(bus, "the database was found empty on"))
    usage = await bus.ask(AskUsage(), UsageAnswer)
    assert usage.rows[0].requests == len(stream.said)


@pytest.mark.parametrize("tries", [1, 2])
async def test_what_budgets_had_spent_outlives_the_database_though_the_requests_do_not(
    start: Start, bus: Bus, postgres_server: PostgresServer, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_least = Ledger.at_least

    async def interrupted(ledger: Ledger, sums: Sequence[Sum]) -> None:
        nonlocal tries
        tries -= 1
        if tries:
            raise PostgresAway("it went away again")
        await at_least(ledger, sums)

    await start()
    await set_up(bus)
    stream = Stream(bus)
    await stream.publish(30)
    await in_ledger(stream, postgres_server.dsn)
    spent = await cost(bus)
    await bus.transport.api("STREAM.PURGE.USAGE", {"keep": 2})  # type: ignore[attr-defined]  # as after a week
    monkeypatch.setattr(Ledger, "at_least", interrupted)
    await asyncio.to_thread(postgres_server.wipe)
    await start()
    await stream.publish(1)
    await eventually(lambda: says(bus, "older requests are gone"), BACK_S)
    new = sum(10 + tokens for tokens in list(stream.said.values())[-16:])
    await eventually(lambda: _costs(bus, spent + new), BACK_S)
    assert (await bus.ask(AskUsage(), UsageAnswer)).rows[0].requests == 3 * 16


async def _costs(bus: Bus, micros: int) -> bool:
    return await cost(bus) == micros


async def test_a_database_put_back_from_a_copy_gets_what_it_lacks(
    start: Start, bus: Bus, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    await start()
    await set_up(bus)
    stream = Stream(bus)
    await stream.publish(10)
    await in_ledger(stream, postgres_server.dsn)
    await asyncio.to_thread(postgres_server.back_up, tmp_path / "copy")
    await stream.publish(10)
    await in_ledger(stream, postgres_server.dsn)
    await asyncio.to_thread(postgres_server.put_back, tmp_path / "copy")
    await stream.publish(2)
    await in_ledger(stream, postgres_server.dsn)
    await eventually(lambda: says(bus, "the database was put back from a copy"))


async def test_a_wiped_bus_is_said_and_its_new_numbers_are_not_mixed_with_the_former(
    start: Start, bus: Bus, nats_server: NatsServer, postgres_server: PostgresServer
) -> None:
    service = await start()
    await set_up(bus)
    stream = Stream(bus)
    await stream.publish(20)
    await in_ledger(stream, postgres_server.dsn)
    await asyncio.to_thread(nats_server.wipe)
    await eventually(lambda: bus.connected)
    await ensure(bus)
    await eventually(lambda: bool(service.authority.not_ready()), BACK_S)
    await start()
    await eventually(lambda: says(bus, "the bus was begun anew on"), BACK_S)
    assert await says(bus, "put a backup of the bus back, or apply your files")
    await set_up(bus)
    await stream.publish(5)
    await in_ledger(stream, postgres_server.dsn)  # what the ledger had stays, and counts


async def test_a_bus_put_back_from_a_copy_skips_and_doubles_nothing(
    start: Start, bus: Bus, nats_server: NatsServer, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    service = await start()
    await set_up(bus)
    stream = Stream(bus)
    await stream.publish(10)
    await in_ledger(stream, postgres_server.dsn)
    await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
    await eventually(lambda: service.authority.leading, BACK_S)
    await stream.publish(10)
    await in_ledger(stream, postgres_server.dsn)
    await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
    await stream.publish(6)  # under sequences the ledger has seen before
    await in_ledger(stream, postgres_server.dsn)
    await eventually(lambda: says(bus, "the bus was put back from a copy"), BACK_S)
