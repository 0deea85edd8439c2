"""A hard budget while accounting, its database and a gateway die: it holds, and the ledger comes out equal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from libs.bus import Bus
from libs.events import commands
from libs.events.budget import Budget
from libs.events.questions import BudgetsAnswer, ListBudgets
from libs.events.tenancy import Allowance, OrgSpec, Price, ProjectSpec, TeamSpec
from libs.events.views import Spend
from libs.runtime.secrets import key_hash
from libs.testing import eventually
from libs.testing.engine import SimEngine
from libs.testing.ledger import inconsistencies, rows
from libs.testing.postgres import PostgresServer
from libs.testing.traffic import Answer, Traffic, ask
from services.gateway.cluster.gossip import EVERY_S
from tests.adversity.accounting.test_accounting_outages import PROGRAM
from tests.integration.gateway.conftest import GatewayProcess, World, world

__all__ = ["world"]

SECRET = "sk-llmgw-hard-budget"
KEY_ID = "k-aaaaaaaaaa"
TOKENS = 10
EACH = 1_000 * TOKENS
"""Micro-units a request costs, but for its prompt."""
RATE = 60.0
AMOUNT = 300 * EACH
REVOKED_WITHIN_S = 2.0
SETUP = (
    commands.DefinePrice(price=Price(model="*", prompt_micros=1_000, completion_micros=1_000_000)),
    commands.DefineOrg(spec=OrgSpec(name="acme")),
    commands.DefineTeam(spec=TeamSpec(org="acme", name="lab")),
    commands.DefineProject(spec=ProjectSpec(org="acme", team="lab", name="web")),
    commands.CreateKey(
        key_id=KEY_ID,
        key_sha256=key_hash(SECRET),
        shown="sk-llmgw-hard",
        project="acme/lab/web",
        allowance=Allowance(budgets=(Budget(amount_micros=AMOUNT, period="total"),)),
    ),
)


class AccountingProcess:
    """Accounting in a process of its own, to be killed."""

    def __init__(self, nats_url: str, dsn: str, directory: Path) -> None:
        self._environment = {
            "LLMGW_ACCOUNTING_NATS_URL": nats_url,
            "LLMGW_ACCOUNTING_POSTGRES_DSN": dsn,
            "LLMGW_ACCOUNTING_DATA_DIR": str(directory),
            "LLMGW_ACCOUNTING_INSTANCE": "one",
        }
        self._log = directory / "accounting.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, env=os.environ | self._environment, stdout=log, stderr=log
            )

    async def end(self, by: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(by)
            await self._process.wait()


@pytest.fixture
async def accounting(world: World, postgres_server: PostgresServer, tmp_path: Path) -> AsyncIterator[AccountingProcess]:
    process = AccountingProcess(world.server.url, postgres_server.dsn, tmp_path)
    await process.start()
    yield process
    await process.end(signal.SIGTERM)


@pytest.mark.slow
async def test_a_budget_holds_and_the_ledger_is_exact_whoever_dies(
    accounting: AccountingProcess,
    world: World,
    bus: Bus,
    sim_engine: SimEngine,
    postgres_server: PostgresServer,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    await asyncio.to_thread(sim_engine.behave, tok_s=100)
    await world.route(sim_engine)
    for wish in SETUP:
        assert (await bus.command(wish, timeout_s=30)).status == "done"
    gateways = GatewayProcess(tmp_path / "gateway", world.server.url, workers=3)
    world._stack.callback(gateways.stop)
    await asyncio.to_thread(gateways.start)
    await eventually(lambda: len(gateways.workers()) == 3, 30)
    url = f"http://127.0.0.1:{gateways.port}/v1"
    await eventually(lambda: _is(url, 200), 20)

    async with Traffic(url, SECRET, "sim", rate=RATE, max_tokens=TOKENS) as traffic:
        await eventually(lambda: _answered(traffic) > 60, 30)
        assert await bus.view("spend", Spend).get(KEY_ID) is not None
        await accounting.end(signal.SIGKILL)
        await asyncio.to_thread(postgres_server.kill)
        await eventually(lambda: _answered(traffic) > 130, 30)
        victim = gateways.workers()[0]
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: _only_refused(traffic.answers[-30:]), 60, what="the budget spent without a ledger")
        assert await eventually(lambda: victim not in gateways.workers() and len(gateways.workers()) == 3, 30)
        answers = list(traffic.answers)
        await asyncio.to_thread(postgres_server.start)
        await accounting.start()
        await eventually(lambda: _counted(bus, postgres_server.dsn, answers), 60, every_s=0.1)
        spent = sum(row.cost_micros for row in await rows(postgres_server.dsn))
        in_an_interval = RATE * EVERY_S * (EACH + 100)
        assert AMOUNT - 2 * EACH < spent <= AMOUNT + in_an_interval
        answered = _answered(traffic)

        more = Allowance(budgets=(Budget(amount_micros=2 * AMOUNT, period="total"),))
        assert (await bus.command(commands.ChangeKey(key_id=KEY_ID, allowance=more), timeout_s=30)).status == "done"
        await eventually(lambda: _answered(traffic) > answered + 30, 10)
        await bus.command(commands.RevokeKey(key_id=KEY_ID), timeout_s=30)
        revoked_at = asyncio.get_running_loop().time()
        await eventually(lambda: all(one.status in (401, 429) for one in traffic.answers[-30:]), 10)
        last = await traffic.stop()
    late = [one.started - revoked_at for one in last if one.status == 200 and one.started > revoked_at]
    assert max(late, default=0.0) < REVOKED_WITHIN_S

    known = [answer for answer in last if answer.status not in (401, 429)]
    await eventually(lambda: _has(postgres_server.dsn, known), 60, every_s=0.1)
    assert await inconsistencies(postgres_server.dsn) == []
    ledger = {row.request_id: row for row in await rows(postgres_server.dsn)}
    for answer in known:
        if answer.ok:
            row = ledger[answer.request_id]
            assert (row.status, row.completion_tokens) == ("ok", answer.completion_tokens)
            assert row.cost_micros == row.prompt_tokens + 1_000 * row.completion_tokens
        elif answer.status == 402:
            assert (ledger[answer.request_id].status, ledger[answer.request_id].cost_micros) == ("refused_budget", 0)
    record_property("spent of a budget while the ledger was away and a gateway died", f"{spent / AMOUNT:.2%}")
    record_property("a revoked key was last taken after, s", round(max(late, default=0.0), 2))


def _answered(traffic: Traffic) -> int:
    return sum(answer.status == 200 for answer in traffic.answers)


def _only_refused(answers: list[Answer]) -> bool:
    return bool(answers) and all(answer.status == 402 for answer in answers)


async def _is(url: str, status: int) -> bool:
    return (await ask(url, SECRET, "sim", "hello", 1)).status == status


async def _has(dsn: str, answers: list[Answer]) -> bool:
    return {answer.request_id for answer in answers if answer.request_id} <= {row.request_id for row in await rows(dsn)}


async def _counted(bus: Bus, dsn: str, answers: list[Answer]) -> bool:
    """Whether the ledger has every one of these requests, and what is said of it is what is in it."""
    found = {row.request_id: row for row in await rows(dsn)}
    if not {answer.request_id for answer in answers if answer.request_id} <= found.keys():
        return False
    answer = await bus.ask(ListBudgets(), BudgetsAnswer)
    spend = await bus.view("spend", Spend).get(KEY_ID)
    total = sum(row.cost_micros for row in found.values())
    return spend is not None and spend.spent_micros["total"] == answer.rows[0].spent_micros == total
