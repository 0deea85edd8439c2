"""One seed from beginning to end."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import yaml

from libs.events.tenancy import Price
from libs.testing import eventually
from libs.testing.ledger import LedgerRow, inconsistencies, rows
from tests.e2e.cluster import Cluster
from tests.e2e.engines import fetch

from .blows import Blows
from .changes import Changes
from .load import TENANTS, Load, create_keys
from .reconcile import differences, over_rpm, over_tpm, overspent
from .story import story

FLEET = Path(__file__).with_name("fleet.yaml")
DECLARED = yaml.safe_load(FLEET.read_text())
PRICES = {one["model"]: Price(**one) for one in DECLARED["prices"]}
MODELS = {one["name"]: one["scaling"]["min"] for one in DECLARED["models"]}
AGENTS = tuple(f"nodeagent@{one['id']}" for one in DECLARED["machines"])
BUDGETS = {
    f"{org['name']}/{team['name']}": team["allowance"]["budgets"][0]["amount_micros"]
    for org in DECLARED["orgs"]
    for team in org["teams"]
    if "budgets" in team.get("allowance", {})
}
"""Of teams, in micro-units in all."""
HEALED_S = 90.0
"""From the last blow until every part is ready and every model served; a bus that lost its servers is waited for."""
LEDGER_S = 60.0


@dataclass
class Result:
    """What came of a seed."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    """Status and, where it is no complete answer, what the client saw."""
    blows: int = 0
    missed: int = 0
    rows: int = 0
    made: int = 0
    """Keys, while parts were killed; and revoked."""
    revoked: int = 0
    healed_s: float = 0.0

    def __str__(self) -> str:
        told = ", ".join(f"{count} {what}" for what, count in self.answers.most_common())
        return (
            f"seed {self.seed}: {sum(self.answers.values())} requests under {self.blows - self.missed} blows, "
            f"{self.rows} rows, {self.made} keys made and {self.revoked} revoked, healed after {self.healed_s:.1f} s, "
            f"{len(self.wrong)} differences\n  {told}"
        )


async def run(seed: int, seconds: float, directory: Path, say: Callable[[str], None]) -> Result:
    """Start a cluster in a directory, play the seed's story, reconcile, stop it."""
    cluster = Cluster(directory / "state")
    result = Result(seed)
    try:
        await asyncio.to_thread(cluster.up, "--port", "0", "--no-model", "--fleet", str(FLEET))
        keys, key_ids = await asyncio.to_thread(create_keys, cluster)
        dsn = cluster.postgres_dsn
        load = Load(cluster.base_url, keys, seed)
        told = story(seed, seconds, AGENTS)
        blows = Blows(cluster, told, say)
        changes = Changes(cluster, seed)
        changing = asyncio.create_task(changes.drive())
        load.start()
        async with asyncio.timeout(seconds + 60):
            await blows.deal()
        changing.cancel()
        ended = time.monotonic()
        result.blows, result.missed = len(told), blows.missed
        try:
            await _healed(cluster)
            await _quiet(load, result)
        except AssertionError as why:
            result.wrong.append(str(why))
        result.healed_s = time.monotonic() - ended
        await load.stop()
        result.answers.update(_kind(one.answer.status, one.answer.error) for one in load.asked)
        (directory / "asked.json").write_text(json.dumps([_log(one) for one in load.asked], indent=1))
        ledger = await _ledger(dsn, {one.answer.request_id for one in load.asked if one.answer.request_id}, result)
        result.rows = len(ledger)
        result.wrong += differences(load.asked, ledger, key_ids, PRICES)
        result.wrong += await inconsistencies(dsn)
        budgets = {key_ids[one.name]: one.budget_micros for one in TENANTS if one.budget_micros is not None}
        result.wrong += overspent(ledger, budgets | BUDGETS)
        for tenant in TENANTS:
            if tenant.rpm is not None:
                result.wrong += over_rpm(ledger, key_ids[tenant.name], tenant.rpm)
            if tenant.tpm is not None:
                result.wrong += over_tpm(ledger, key_ids[tenant.name], tenant.tpm)
        replayed = await asyncio.to_thread(cluster.json, "event", "replay")
        if replayed["same"] is not True:
            result.wrong.append("the log folds to another state than the scheduler's")
        result.wrong += changes.differences(await asyncio.to_thread(cluster.json, "key", "list"))
        result.made, result.revoked = len(changes.made), len(changes.revoked)
        result.wrong += _tracebacks(cluster)
    finally:
        running = cluster.processes() if cluster.record().get("up") else []
        await asyncio.to_thread(cluster.down)
        _, left = psutil.wait_procs(running, timeout=10)
        result.wrong += [f"process {one.pid} outlived the cluster" for one in left]
    return result


async def _healed(cluster: Cluster) -> None:
    """Wait until every part is ready, and every model has its replicas.

    A model whose engines were killed five times in a row is parked, and says that a person must try it again: that is
    done here once, as its message says.
    """
    tried: set[str] = set()

    async def ready(part: str) -> bool:
        return (await fetch(cluster.ports()[f"{part} status"], "/ready"))[0] == 200

    async def served() -> bool:
        models = {model["model"]: model for model in await asyncio.to_thread(cluster.json, "model", "list")}
        for name in {name for name, model in models.items() if model["reason"].startswith("parked")} - tried:
            tried.add(name)
            await asyncio.to_thread(cluster.run, "model", "restart", name)
        return all(models[name]["ready"] >= count for name, count in MODELS.items())

    end = time.monotonic() + HEALED_S
    for part in ("scheduler", "accounting", "guard", "mirror", "gateway", *AGENTS):
        await eventually(
            lambda part=part: ready(part),  # type: ignore[misc]
            max(1.0, end - time.monotonic()),
            every_s=0.2,
            what=f"{part} is ready again",
        )
    await eventually(served, max(1.0, end - time.monotonic()), every_s=0.5, what="every model is served again")


async def _quiet(load: Load, result: Result) -> None:
    """With nothing broken, nothing fails."""
    before = len(load.asked)
    await eventually(lambda: len(load.asked) > before + 30, 30, what="requests are answered again")
    since = max(one.answer.started for one in load.asked[before:]) - 2.0
    await eventually(lambda: sum(one.answer.started > since for one in load.asked) > 40, 30, what="answers go on")
    for one in load.asked:
        answer = one.answer
        refused = answer.status in (402, 429) or (one.manner, answer.status) == ("secret", 400)
        if answer.started > since and not (answer.ok or refused or answer.error == "left"):
            result.wrong.append(f"after everything had healed: {one.tenant.name} {answer.status} {answer.error}")


async def _ledger(dsn: str, ids: set[str], result: Result) -> list[LedgerRow]:
    """All rows, once those that are expected are there and no more come."""
    found: list[LedgerRow] = []

    async def complete() -> bool:
        found[:] = await rows(dsn)
        return ids <= {row.request_id for row in found}

    with suppress(AssertionError):  # what is missing is said request by request
        await eventually(complete, LEDGER_S, every_s=0.5)
    for _ in range(20):
        count = len(found)
        await asyncio.sleep(1.0)
        found[:] = await rows(dsn)
        if len(found) == count:
            break
    return found


def _tracebacks(cluster: Cluster) -> list[str]:
    found = []
    for log in sorted((cluster.state_dir / "logs").glob("*.log")):
        text = log.read_text(errors="replace")
        if "Traceback (most recent call last)" in text:
            last = text.split("Traceback (most recent call last)")[1].splitlines()
            ends = next((line for line in last[1:] if line and not line.startswith((" ", "\t", "|"))), "")
            found.append(f"{log.name} has a traceback: {ends}")
    return found


def _kind(status: int, error: str) -> str:
    if status == 200:
        if not error:
            return "complete"
        return "left by the client" if error == "left" else "begun and broken off"
    return f"refused {status}" if status else "without an answer"


def _log(one: object) -> dict[str, object]:
    told = asdict(one)  # type: ignore[call-overload]
    told["tenant"] = told["tenant"]["name"]
    told["answer"].pop("body")
    return dict(told)
