"""The whole service over a real bus and a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from libs.bus import AskFailed, Bus, BusSettings, Delivery, connect, ensure
from libs.bus.identities import GRANTS, authorization, ensure_seed
from libs.events import commands, encode
from libs.events.policy import Finding, VerdictBatch, VerdictRecord
from libs.events.questions import AskUsage, ExamineAccounting, Examined, ListTenancy, TenancyAnswer, UsageAnswer
from libs.events.tenancy import Allowance, OrgSpec, Price, ProjectSpec, TeamSpec
from libs.events.usage import RequestRecord, UsageBatch
from libs.events.views import KeyView, PriceView, Spend
from libs.testing import eventually
from libs.testing.ledger import inconsistencies, rows
from libs.testing.nats import NatsServer
from services.accounting.adapters.postgres import Committed, Entry, Ledger, PostgresAway
from services.accounting.app import Accounting, build
from services.accounting.settings import AccountingSettings

START = Callable[[str], Awaitable[Accounting]]
TREE = (
    commands.DefineOrg(spec=OrgSpec(name="acme", allowance=Allowance(models=("big", "small")))),
    commands.DefineTeam(spec=TeamSpec(org="acme", name="research")),
    commands.DefineProject(spec=ProjectSpec(org="acme", team="research", name="chat", allowance=Allowance(rpm=60))),
    commands.CreateKey(key_id="k-aaaaaaaaaa", key_sha256="a" * 64, shown="sk-llmgw-aaaa", project="acme/research/chat"),
)


@pytest.fixture
async def start(nats_server: NatsServer, bus: Bus, postgres_dsn: str, tmp_path: Path) -> AsyncIterator[START]:
    """Start an instance, each on a connection of its own."""
    started: list[tuple[Accounting, Bus]] = []

    async def start(instance: str) -> Accounting:
        connection = await connect(BusSettings(url=nats_server.url, identity="accounting"))
        settings = AccountingSettings(postgres_dsn=postgres_dsn, data_dir=tmp_path, instance=instance)
        service = build(settings, connection)
        started.append((service, connection))
        await service.start()
        return service

    yield start
    for service, connection in started:
        await service.stop()
        await connection.close()


def batch(first: int, count: int = 10, gateway: str = "gw-1") -> UsageBatch:
    now = datetime.now(UTC)
    return UsageBatch(
        gateway_id=gateway,
        offset=(first + count) * 100,
        records=tuple(
            RequestRecord(
                request_id=f"req-{gateway}-{number}",
                opened_at=now - timedelta(seconds=1),
                closed_at=now,
                key_id="k-aaaaaaaaaa",
                project="acme/research/chat",
                model_asked="small",
                model="small",
                protocol="openai.chat",
                status="ok",
                prompt_tokens=10,
                completion_tokens=number,
                waited_ms=1.5,
            )
            for number in range(first, first + count)
        ),
    )


async def test_commands_become_the_view_of_keys(start: START, bus: Bus) -> None:
    service = await start("one")
    for wish in TREE:
        assert (await bus.command(wish)).status == "done"
    keys = bus.view("keys", KeyView)
    view = await keys.get("a" * 64)
    assert view is not None
    assert (view.key_id, view.models, view.project_rpm, view.revoked) == ("k-aaaaaaaaaa", ("big", "small"), 60, False)
    assert (await bus.command(TREE[0])).status == "unchanged"
    wide = commands.ChangeKey(key_id="k-aaaaaaaaaa", allowance=Allowance(rpm=61))
    outcome = await bus.command(wide)
    assert (outcome.status, [p.path for p in outcome.problems]) == ("refused", ["allowance.rpm"])
    other = commands.CreateKey(
        key_id="k-bbbbbbbbbb", key_sha256="b" * 64, shown="sk-llmgw-bbbb", project="acme/research/chat"
    )
    await bus.command(other)
    assert await keys.get("a" * 64) == view, "what did not change is not written again"
    assert (await bus.command(commands.RevokeKey(key_id="k-aaaaaaaaaa"))).status == "done"
    revoked = await keys.get("a" * 64)
    assert revoked is not None
    assert revoked.revoked
    assert revoked.position > view.position
    answer = await bus.ask(ListTenancy(), TenancyAnswer)
    assert [(key.key_id, key.revoked) for key in answer.keys] == [("k-aaaaaaaaaa", True), ("k-bbbbbbbbbb", False)]
    await eventually(lambda: service.not_ready() == [])


async def test_a_command_is_examined_without_being_sent(start: START, bus: Bus) -> None:
    await start("one")
    await bus.command(TREE[0])
    team = commands.DefineTeam(spec=TeamSpec(org="nobody", name="research"))
    examined = await bus.ask(ExamineAccounting(command=encode(team).decode()), Examined)
    assert [problem.path for problem in examined.problems] == ["spec.org"]
    assert (await bus.ask(ExamineAccounting(command=encode(TREE[0]).decode()), Examined)).unchanged
    assert not (await bus.ask(ExamineAccounting(command=encode(TREE[1]).decode()), Examined)).unchanged
    assert (await bus.ask(ListTenancy(), TenancyAnswer)).teams == ()


async def test_usage_becomes_rows_spend_and_answers(start: START, bus: Bus, postgres_dsn: str) -> None:
    await start("one")
    price = commands.DefinePrice(price=Price(model="*", prompt_micros=1000, completion_micros=2000))
    outcome = await bus.command(price)
    _, last = [await bus.append(batch(first), cause=f"gw-1:{first}") for first in (0, 10)]
    epoch = (await bus.transport.extent("USAGE")).epoch
    found = await eventually(lambda: _rows(postgres_dsn, 20))
    assert {(row.price_version, row.cost_micros) for row in found} == {
        (outcome.sequence, 10 + 2 * number) for number in range(20)
    }
    spend = await eventually(lambda: _spent(bus, 20))
    assert (spend.prompt_tokens, spend.completion_tokens, spend.cost_micros) == (200, 190, 580)
    assert (spend.ledger, spend.epoch) == (last, epoch)
    for account in ("acme/research/chat", "acme/research/*", "acme/*"):
        charged = await eventually(lambda account=account: _spent(bus, 20, account))  # type: ignore[misc]
        assert (charged.counted, set(charged.spent_micros.values()), charged.ledger) == (20, {580}, last)
    listed = await bus.view("prices", PriceView).all()
    assert listed == {"*": PriceView(price=price.price, version=outcome.sequence)}
    answer = await bus.ask(AskUsage(by="project"), UsageAnswer)
    assert [(row.name, row.requests, row.cost_micros) for row in answer.rows] == [("acme/research/chat", 20, 580)]
    assert answer.rows[0].waited_ms == 30
    with pytest.raises(AskFailed, match="by one of org, team, project, key, model"):
        await bus.ask(AskUsage(by="colour"), UsageAnswer)
    assert await inconsistencies(postgres_dsn) == []


async def test_nothing_is_said_to_be_counted_while_something_before_it_is_missing(
    start: START, bus: Bus, nats_server: NatsServer, postgres_dsn: str
) -> None:
    dead = await connect(BusSettings(url=nats_server.url, identity="accounting"))
    await bus.append(batch(0), cause="gw-1:0")
    reader = await dead.transport.pull("USAGE", "accounting-ledger", 1)
    held = await reader.next(5)
    assert held is not None
    await start("one")
    last = await bus.append(batch(10), cause="gw-1:10")
    await eventually(lambda: _rows(postgres_dsn, 10))
    assert await bus.view("spend", Spend).get("k-aaaaaaaaaa") is None
    await dead.transport.nak(held, 0)
    spend = await eventually(lambda: _spent(bus, 20))
    assert spend.ledger == last
    last = await bus.append(batch(20), cause="gw-1:20")
    assert (await eventually(lambda: _spent(bus, 30))).ledger == last
    await dead.close()


async def test_what_comes_twice_is_there_once(start: START, bus: Bus, postgres_dsn: str) -> None:
    service = await start("one")
    await bus.append(batch(0), cause="gw-1:0")
    await bus.append(batch(0), cause="gw-1:0 again, after the server forgot the first")
    await bus.append(batch(5), cause="gw-1:5, half of it new")
    await eventually(lambda: _rows(postgres_dsn, 15))
    # A service killed between the commit and its acknowledgements: all of it comes again.
    deliveries: list[Delivery] = []

    async def keep(delivery: Delivery) -> None:
        deliveries.append(delivery)

    follower = await bus.follow("USAGE", ["llmgw.use.>"], keep)
    await eventually(lambda: len(deliveries) == 3)
    await service._writer._stop()  # as the killed one had stopped
    await service._writer.write(deliveries)
    await service._writer.write(list(reversed(deliveries)))
    await follower.stop()
    assert len(await rows(postgres_dsn)) == 15
    assert await inconsistencies(postgres_dsn) == []
    assert (await eventually(lambda: _spent(bus, 15))).completion_tokens == sum(range(15))


async def test_a_batch_is_entered_before_anything_is_published_and_never_again(
    start: START, bus: Bus, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[int] = []
    committing = Ledger.commit

    async def counted(ledger: Ledger, entry: Entry, at: datetime) -> Committed:
        commits.append(len(entry.requests))
        return await committing(ledger, entry, at)

    def fails(_ledger: Ledger, _at: datetime) -> Any:
        raise PostgresAway("the scan takes too long")

    monkeypatch.setattr(Ledger, "commit", counted)
    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "whole", fails)
        await bus.append(batch(0), cause="gw-1:0")
        await start("one")
        await eventually(lambda: _rows(postgres_dsn, 10))
        last = await bus.append(batch(10), cause="gw-1:10")
        await eventually(lambda: _rows(postgres_dsn, 20))
        assert commits == [10, 10]
        assert await bus.view("spend", Spend).get("k-aaaaaaaaaa") is None
    assert (await eventually(lambda: _spent(bus, 20))).ledger == last
    assert commits == [10, 10]


async def test_an_account_nobody_has_any_more_leaves_what_is_published(
    start: START, bus: Bus, postgres_dsn: str
) -> None:
    old = await start("one")
    for wish in TREE:
        await bus.command(wish)
    long_ago = datetime.now(UTC) - timedelta(days=70)
    first = batch(0, 2)
    late = tuple(msgspec.structs.replace(one, opened_at=long_ago, closed_at=long_ago) for one in first.records)
    gone = msgspec.structs.replace(late[1], request_id="req-gone", key_id="k-gone", project="acme/gone/gone")
    await bus.append(msgspec.structs.replace(first, records=(*late, gone)), cause="gw-1:0")
    spend = await eventually(lambda: _counted(bus, 2))
    assert set(spend.spent_micros) == {"total"}
    stale = msgspec.structs.replace(spend, key_id="k-gone")
    await bus.view("spend", Spend).put("k-gone", stale)
    await old.stop()
    await start("two")
    await eventually(lambda: _is_gone(bus, "k-gone"))
    assert await bus.view("spend", Spend).get("acme/gone/gone") is None
    for wish in (
        commands.DefineTeam(spec=TeamSpec(org="acme", name="gone")),
        commands.DefineProject(spec=ProjectSpec(org="acme", team="gone", name="gone")),
    ):
        await bus.command(wish)
    again = await eventually(lambda: bus.view("spend", Spend).get("acme/gone/gone"))
    assert again.counted == 1, "what is called the same is charged to the same account"


async def test_old_months_become_sums_where_a_setting_says_so(
    nats_server: NatsServer, bus: Bus, postgres_dsn: str, tmp_path: Path
) -> None:
    connection = await connect(BusSettings(url=nats_server.url, identity="accounting"))
    settings = AccountingSettings(postgres_dsn=postgres_dsn, data_dir=tmp_path, instance="one", keep_requests_months=1)
    service = build(settings, connection)
    await service.start()
    long_ago = datetime.now(UTC) - timedelta(days=70)
    first = batch(0, 20)
    records = [msgspec.structs.replace(one, opened_at=long_ago, closed_at=long_ago) for one in first.records[:10]]
    await bus.append(msgspec.structs.replace(first, records=(*records, *first.records[10:])), cause="gw-1:0")
    await eventually(lambda: _rows(postgres_dsn, 10), 30)
    answer = await bus.ask(AskUsage(by="key"), UsageAnswer)
    assert [(row.name, row.requests) for row in answer.rows] == [("k-aaaaaaaaaa", 20)]
    await service.stop()
    await connection.close()


async def test_one_bad_message_is_parked_alone(start: START, bus: Bus, postgres_dsn: str) -> None:
    broken = batch(0, 1)
    record = broken.records[0]
    clock = msgspec.structs.replace(record, opened_at=datetime(1, 1, 2, tzinfo=UTC))
    await bus.append(msgspec.structs.replace(broken, records=(clock,)), cause="broken clock")
    await bus.append(batch(10), cause="good")
    await start("one")
    await eventually(lambda: _rows(postgres_dsn, 10))
    parked = await eventually(lambda: bus.transport.last("PARKED", "llmgw.dlq.USAGE.accounting-ledger"))
    assert "check the gateway's clock" in parked.headers["Llmgw-Reason"]


async def test_verdicts_enter_the_ledger_without_text(start: START, bus: Bus, postgres_dsn: str) -> None:
    finding = Finding(policy="no-secrets", rule="secrets.aws_access_key", action="block", enforced=True)
    record = VerdictRecord(request_id="req-1", project="acme/research/chat", allow=False, findings=(finding,))
    await start("one")
    await bus.append(VerdictBatch(guard_id="g-1", records=(record, record)), cause="g-1:1")

    async def count() -> bool:
        connection = await asyncpg.connect(postgres_dsn)
        try:
            return bool(await connection.fetchval("SELECT count(*) = 2 FROM llmgw.verdict WHERE NOT allow"))
        finally:
            await connection.close()

    await eventually(count)


async def test_its_identity_on_the_bus_allows_all_it_does(postgres_dsn: str, tmp_path: Path) -> None:
    seeds = {name: tmp_path / f"{name}.nk" for name in ("accounting", "operator", "gateway")}
    keys = {name: ensure_seed(path) for name, path in seeds.items()}
    server = NatsServer(tmp_path / "nats", authorization=authorization(keys, GRANTS))
    server.start()
    buses = {
        name: await connect(BusSettings(url=server.url, identity=name, credentials=path))
        for name, path in seeds.items()
    }
    operator = buses["operator"]
    await ensure(operator)
    service = build(
        AccountingSettings(postgres_dsn=postgres_dsn, data_dir=tmp_path, instance="one"), buses["accounting"]
    )
    try:
        await service.start()
        for wish in TREE:
            assert (await operator.command(wish)).status == "done"
        await buses["gateway"].append(batch(0), cause="gw-1:0")
        await eventually(lambda: _spent(buses["gateway"], 10))
        assert (await operator.ask(AskUsage(by="key"), UsageAnswer)).rows[0].requests == 10
        assert (await buses["gateway"].view("keys", KeyView).get("a" * 64)) is not None
    finally:
        await service.stop()
        for connection in buses.values():
            await connection.close()
        server.stop()


async def test_another_instance_takes_over_and_nothing_is_missed(start: START, bus: Bus, postgres_dsn: str) -> None:
    one = await start("one")
    for wish in TREE:
        await bus.command(wish)
    two = await start("two")
    await bus.append(batch(0), cause="gw-1:0")
    await eventually(lambda: _rows(postgres_dsn, 10))
    await one.stop()
    last = await bus.append(batch(10), cause="gw-1:10")
    await eventually(lambda: two.authority.leading)
    await eventually(lambda: _rows(postgres_dsn, 20))
    assert (await eventually(lambda: _spent(bus, 20))).ledger == last
    assert (await bus.command(commands.RevokeKey(key_id="k-aaaaaaaaaa"))).status == "done"
    view = await bus.view("keys", KeyView).get("a" * 64)
    assert view is not None
    assert view.revoked


async def test_a_view_that_was_changed_by_hand_is_put_right(start: START, bus: Bus) -> None:
    keys = bus.view("keys", KeyView)
    await keys.put("f" * 64, KeyView(key_id="k-forged", project="x/y/z", roles=("admin",)))
    await start("one")
    for wish in TREE:
        await bus.command(wish)
    assert await keys.get("f" * 64) is None
    assert set(await keys.all()) == {"a" * 64}
    true = await keys.get("a" * 64)
    assert true is not None
    await keys.put("a" * 64, msgspec.structs.replace(true, roles=("admin",)))
    await bus.command(commands.ChangeKey(key_id="k-aaaaaaaaaa", name="changed"))
    await bus.command(commands.ChangeKey(key_id="k-aaaaaaaaaa", allowance=Allowance(rpm=7)))
    found = await keys.get("a" * 64)
    assert found is not None
    assert (found.roles, found.rpm) == (("client",), 7)


async def test_spend_that_was_changed_by_hand_is_put_right(start: START, bus: Bus, postgres_dsn: str) -> None:
    await start("one")
    await bus.append(batch(0), cause="gw-1:0")
    spend = await eventually(lambda: _spent(bus, 10))
    await bus.view("spend", Spend).put("k-aaaaaaaaaa", msgspec.structs.replace(spend, requests=1))
    await bus.append(batch(10), cause="gw-1:10")
    await eventually(lambda: _spent(bus, 20))


async def test_a_hundred_gateways_worth_of_batches_in_time(
    start: START, bus: Bus, postgres_dsn: str, record_property: Callable[[str, object], None]
) -> None:
    await start("one")
    await eventually(lambda: bus.command(TREE[0]))
    loop = asyncio.get_running_loop()
    batches = [batch(n * 64, 64, f"gw-{n % 4}") for n in range(200)]
    started = loop.time()
    await asyncio.gather(*(bus.append(one, cause=f"{number}") for number, one in enumerate(batches)))
    await eventually(lambda: _rows(postgres_dsn, 200 * 64), 30, every_s=0.1)
    rate = 200 * 64 / (loop.time() - started)
    record_property("usage stream to ledger, publishing included", f"{rate:,.0f} requests/s")
    assert rate > 1000  # what a hundred gateways finish; the figure is what counts, other tests run beside this one
    assert await inconsistencies(postgres_dsn) == []


async def _rows(dsn: str, count: int) -> Any:
    found = await rows(dsn)
    return found if len(found) == count else None


async def _spent(bus: Bus, requests: int, account: str = "k-aaaaaaaaaa") -> Any:
    spend = await bus.view("spend", Spend).get(account)
    return spend if spend is not None and spend.requests == requests else None


async def _counted(bus: Bus, requests: int) -> Any:
    spend = await bus.view("spend", Spend).get("k-aaaaaaaaaa")
    return spend if spend is not None and spend.counted == requests else None


async def _is_gone(bus: Bus, account: str) -> bool:
    return await bus.view("spend", Spend).get(account) is None
