"""The ledger stays exact when PostgreSQL, the network or accounting itself goes away."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from libs.bus import AskFailed, Bus, BusSettings, connect
from libs.events import commands
from libs.events.questions import AskUsage, UsageAnswer
from libs.events.tenancy import OrgSpec, Price, ProjectSpec, TeamSpec
from libs.events.usage import RequestRecord, UsageBatch
from libs.events.views import KeyView, Spend
from libs.testing import eventually
from libs.testing.ledger import inconsistencies, rows
from libs.testing.nats import NatsServer
from libs.testing.postgres import PostgresServer
from libs.testing.proxy import TcpProxy
from services.accounting.adapters import postgres
from services.accounting.app import Accounting, build
from services.accounting.settings import AccountingSettings

SETUP = (
    commands.DefineOrg(spec=OrgSpec(name="acme")),
    commands.DefineTeam(spec=TeamSpec(org="acme", name="research")),
    commands.DefineProject(spec=ProjectSpec(org="acme", team="research", name="chat")),
    commands.CreateKey(key_id="k-aaaaaaaaaa", key_sha256="a" * 64, shown="sk-llmgw-aaaa", project="acme/research/chat"),
    commands.DefinePrice(price=Price(model="*", prompt_micros=1000, completion_micros=1000)),
)
BATCH = 16


class Stream:
    """A gateway that publishes batches, one after another, and remembers what it said."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.said: dict[str, int] = {}
        """Request id to its completion tokens."""

    async def publish(self, batches: int, pause_s: float = 0.01) -> None:
        for _ in range(batches):
            first = len(self.said)
            now = datetime.now(UTC)
            records = tuple(
                RequestRecord(
                    request_id=f"req-{number:06}",
                    opened_at=now - timedelta(seconds=1),
                    closed_at=now,
                    key_id="k-aaaaaaaaaa",
                    project="acme/research/chat",
                    model_asked="small",
                    model="small",
                    protocol="openai.chat",
                    status="ok",
                    prompt_tokens=10,
                    completion_tokens=number % 97,
                )
                for number in range(first, first + BATCH)
            )
            self.said |= {record.request_id: record.completion_tokens for record in records}
            batch = UsageBatch(gateway_id="gw-1", offset=len(self.said), records=records)
            await self._bus.append(batch, cause=f"gw-1:{first}")
            await asyncio.sleep(pause_s)

    async def is_in(self, dsn: str) -> bool:
        found = {row.request_id: row.completion_tokens for row in await rows(dsn)}
        assert found.keys() <= self.said.keys()
        return found == self.said

    async def is_spent(self) -> bool:
        spend = await self._bus.view("spend", Spend).get("k-aaaaaaaaaa")
        return (
            spend is not None
            and spend.requests == len(self.said)
            and spend.completion_tokens == sum(self.said.values())
            and spend.ledger == (await self._bus.transport.extent("USAGE")).last
        )


@pytest.fixture
async def proxy(postgres_server: PostgresServer) -> AsyncIterator[TcpProxy]:
    async with TcpProxy("127.0.0.1", postgres_server.files.port) as proxy:
        yield proxy


@pytest.fixture
async def service(
    nats_server: NatsServer, bus: Bus, postgres_server: PostgresServer, proxy: TcpProxy, tmp_path: Path
) -> AsyncIterator[Accounting]:
    """Accounting, which reaches PostgreSQL through the proxy."""
    dsn = postgres_server.dsn.replace(f":{urlsplit(postgres_server.dsn).port}/", f":{proxy.port}/")
    connection = await connect(BusSettings(url=nats_server.url, identity="accounting"))
    service = build(AccountingSettings(postgres_dsn=dsn, data_dir=tmp_path, instance="one"), connection)
    await service.start()
    for wish in SETUP:
        await bus.command(wish)
    yield service
    await service.stop()
    await connection.close()


async def test_postgresql_stopped_and_started_under_a_stream(
    service: Accounting, bus: Bus, postgres_server: PostgresServer
) -> None:
    stream = Stream(bus)
    await stream.publish(20)
    publishing = asyncio.create_task(stream.publish(100))
    await asyncio.to_thread(postgres_server.stop)
    reasons = await eventually(service.not_ready)
    assert "PostgreSQL is away" in reasons[0]
    assert service.authority.leading, "it still decides"
    assert (await bus.command(commands.RevokeKey(key_id="k-aaaaaaaaaa"))).status == "done"
    view = await bus.view("keys", KeyView).get("a" * 64)
    assert view is not None
    assert view.revoked
    with pytest.raises(AskFailed, match="PostgreSQL is away"):
        await bus.ask(AskUsage(), UsageAnswer)
    await publishing
    await asyncio.to_thread(postgres_server.start)
    await eventually(lambda: stream.is_in(postgres_server.dsn), 15)
    await eventually(stream.is_spent)
    assert await inconsistencies(postgres_server.dsn) == []
    assert service.not_ready() == []
    assert (await bus.ask(AskUsage(), UsageAnswer)).rows[0].requests == len(stream.said)


async def test_postgresql_killed_again_and_again(
    service: Accounting, bus: Bus, postgres_server: PostgresServer
) -> None:
    stream = Stream(bus)
    publishing = asyncio.create_task(stream.publish(150))
    for _ in range(3):
        await asyncio.sleep(0.3)  # somewhere within the stream, which is what this is about
        await asyncio.to_thread(postgres_server.kill)
        await asyncio.to_thread(postgres_server.start)
    await publishing
    await eventually(lambda: stream.is_in(postgres_server.dsn), 20)
    await eventually(stream.is_spent)
    assert await inconsistencies(postgres_server.dsn) == []


async def test_connections_cut_at_any_moment(
    service: Accounting, bus: Bus, postgres_server: PostgresServer, proxy: TcpProxy
) -> None:
    """Also between a commit and its answer: what is tried again is known already."""
    stream = Stream(bus)
    publishing = asyncio.create_task(stream.publish(100))
    moments = random.Random(7)
    for _ in range(15):
        await asyncio.sleep(moments.uniform(0.02, 0.15))
        await proxy.cut()
    await publishing
    await eventually(lambda: stream.is_in(postgres_server.dsn), 15)
    await eventually(stream.is_spent)
    assert await inconsistencies(postgres_server.dsn) == []


async def test_a_network_that_swallows_everything(
    service: Accounting, bus: Bus, postgres_server: PostgresServer, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "COMMIT_S", 0.5)
    monkeypatch.setattr(postgres, "CONNECT_S", 0.5)
    stream = Stream(bus)
    await stream.publish(5)
    await eventually(lambda: stream.is_in(postgres_server.dsn))
    await proxy.cut()  # the next connection has the shorter patience
    await stream.publish(5)
    await eventually(lambda: stream.is_in(postgres_server.dsn))
    proxy.freeze()
    await stream.publish(5)
    await eventually(service.not_ready, postgres.QUESTION_S + 10)  # a question that was under way has more patience
    await proxy.heal()
    await eventually(lambda: stream.is_in(postgres_server.dsn), 15)
    await eventually(lambda: service.not_ready() == [])
    assert await inconsistencies(postgres_server.dsn) == []


async def test_the_bus_restarts_under_a_stream(
    service: Accounting, bus: Bus, nats_server: NatsServer, postgres_server: PostgresServer
) -> None:
    stream = Stream(bus)
    publishing = asyncio.create_task(stream.publish(100))
    await asyncio.to_thread(nats_server.kill)
    await asyncio.to_thread(nats_server.start)
    await publishing
    await eventually(lambda: stream.is_in(postgres_server.dsn), 30)
    await eventually(stream.is_spent)
    assert await inconsistencies(postgres_server.dsn) == []


PROGRAM = """
import sys
from libs.runtime import run, settings
from services.accounting.app import build
from services.accounting.settings import AccountingSettings
sys.exit(run.serve("accounting", settings.load(AccountingSettings, "accounting").value, build))
"""


@pytest.mark.slow
async def test_leaders_killed_under_a_stream(
    nats_server: NatsServer, bus: Bus, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """kill -9 of whoever leads, five times, at any moment; the other takes over."""
    running: dict[str, Any] = {}

    async def launch(instance: str) -> None:
        environment = {
            "LLMGW_ACCOUNTING_NATS_URL": nats_server.url,
            "LLMGW_ACCOUNTING_POSTGRES_DSN": postgres_server.dsn,
            "LLMGW_ACCOUNTING_DATA_DIR": str(tmp_path),
            "LLMGW_ACCOUNTING_INSTANCE": instance,
        }
        with (tmp_path / f"{instance}.log").open("ab") as log:
            running[instance] = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, env=os.environ | environment, stdout=log, stderr=log
            )

    elected: list[str] = []

    async def on_election(delivery: Any) -> None:
        elected.append(delivery.message.instance)

    follower = await bus.follow("EVENTS", ["llmgw.evt.accounting.main.elected"], on_election)
    try:
        for instance in ("one", "two"):
            await launch(instance)
        await eventually(lambda: elected)
        for wish in SETUP:
            await bus.command(wish)
        stream = Stream(bus)
        publishing = asyncio.create_task(stream.publish(1200, 0.02))
        moments = random.Random(11)
        for _ in range(5):
            before = len(elected)
            await asyncio.sleep(moments.uniform(0.5, 1.5))
            leader = elected[-1]
            running[leader].send_signal(signal.SIGKILL)
            await running[leader].wait()
            await launch(leader)
            await eventually(lambda before=before: len(elected) > before, 12)  # type: ignore[misc]
        await publishing
        await eventually(lambda: stream.is_in(postgres_server.dsn), 40, every_s=0.2)
        await eventually(stream.is_spent)
        assert await inconsistencies(postgres_server.dsn) == []
        outcome = await bus.command(commands.RevokeKey(key_id="k-aaaaaaaaaa"))
        assert outcome.status == "done"
    finally:
        await follower.stop()
        await _stop(running.values())


async def _stop(processes: Iterable[Any]) -> None:
    for process in processes:
        if process.returncode is None:
            process.terminate()
        await process.wait()
