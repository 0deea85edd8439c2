"""What survives what: parts of a whole cluster are killed under traffic, and every token is accounted for."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from libs.testing import eventually
from libs.testing.ledger import LedgerRow, inconsistencies, rows
from libs.testing.traffic import Answer, Traffic

from .cluster import FLEET, Cluster
from .engines import fetch, generated, shards

BUS_AWAY_S = 30
DATABASE_AWAY_S = 60
MODEL = "sim-chat"
LOST_TAGS = {"node.lost.v1", "replica.lost.v1", "replica.failed.v1", "shard.failed.v1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose bus and database stay down for a while when they die."""
    cluster = Cluster(tmp_path_factory.mktemp("survival") / "state")
    holds = ("--hold", f"nats={BUS_AWAY_S}", "--hold", f"postgres={DATABASE_AWAY_S}")
    try:
        cluster.up("--port", "0", "--no-model", "--fleet", str(FLEET), *holds)
        yield cluster
    finally:
        cluster.down()


def engines(cluster: Cluster) -> dict[str, int]:
    """Shard id to its engine's process."""
    return {shard: record["process"]["pid"] for shard, record in shards(cluster).items()}


def tags_since(cluster: Cluster, sequence: int) -> list[str]:
    told = cluster.text("event", "list", "--all", "--json").splitlines()
    events = [json.loads(line) for line in told]
    return [e["tag"] for e in events if e["stream"] == "EVENTS" and e["sequence"] > sequence]


def last_sequence(cluster: Cluster) -> int:
    told = cluster.text("event", "list", "--all", "--json").splitlines()
    return max(e["sequence"] for e in map(json.loads, told) if e["stream"] == "EVENTS")


async def back(cluster: Cluster, part: str, killed: int, deadline_s: float = 20) -> None:
    """Wait until a part runs again as another process, and is ready."""
    await eventually(lambda: cluster.pids().get(part, killed) != killed, deadline_s, what=f"{part} runs again")
    await ready(cluster, part, deadline_s)


async def ready(cluster: Cluster, part: str, deadline_s: float = 20) -> None:
    port = cluster.ports()[f"{part} status"]

    async def asked() -> bool:
        return (await fetch(port, "/ready"))[0] == 200

    await eventually(asked, deadline_s, every_s=0.1, what=f"{part} is ready")


async def ledger_of(cluster: Cluster, answers: list[Answer], deadline_s: float = 30) -> dict[str, LedgerRow]:
    """The rows of these answers, once every one of them that has an id is there."""
    ids = {answer.request_id for answer in answers if answer.request_id}
    found: dict[str, LedgerRow] = {}

    async def complete() -> bool:
        found.update({row.request_id: row for row in await rows(cluster.postgres_dsn)})
        return ids <= found.keys()

    await eventually(complete, deadline_s, every_s=0.3, what="the ledger is complete")
    assert await inconsistencies(cluster.postgres_dsn) == []
    return {request_id: found[request_id] for request_id in ids}


def assert_exact(answers: list[Answer], ledger: dict[str, LedgerRow]) -> None:
    """Every whole answer is one row with the tokens the client was told."""
    for answer in answers:
        if answer.ok:
            row = ledger[answer.request_id]
            assert (row.status, row.prompt_tokens, row.completion_tokens) == (
                "ok",
                answer.prompt_tokens,
                answer.completion_tokens,
            )


def traffic(cluster: Cluster, max_tokens: int = 40) -> Traffic:
    return Traffic(cluster.base_url, cluster.client_key, MODEL, rate=20, max_tokens=max_tokens)


async def healthy(cluster: Cluster) -> dict[str, int]:
    """Wait for the two replicas every test begins with."""
    await eventually(lambda: len(engines(cluster)) == 2, 40, every_s=0.1, what="two engines are ready")
    return engines(cluster)


async def test_any_control_process_killed_is_not_noticed_by_clients_or_engines(cluster: Cluster) -> None:
    before = await healthy(cluster)
    async with traffic(cluster) as running:
        await eventually(lambda: len(running.answers) > 10)
        for part in ("scheduler", "accounting", "guard", "mirror", "nodeagent@sim-1", "nodeagent@sim-2"):
            count = len(running.answers)
            await back(cluster, part, cluster.kill(part))
            await eventually(lambda count=count: len(running.answers) > count + 20)  # type: ignore[misc]
    assert running.failures == []
    assert engines(cluster) == before
    ledger = await ledger_of(cluster, running.answers)
    assert len(ledger) == len(running.answers)
    assert_exact(running.answers, ledger)


async def test_a_killed_gateway_worker_takes_only_its_own_requests_along_and_each_is_billed_as_cut(
    cluster: Cluster,
) -> None:
    await healthy(cluster)
    async with traffic(cluster, max_tokens=500) as running:  # a second each: some twenty are in flight
        await eventually(lambda: len(running.answers) > 25)
        worker = psutil.Process(cluster.pids()["gateway"]).children()[0]
        in_flight = len(running._running)
        answered = len(running.answers)
        worker.kill()
        await eventually(lambda: len(running.answers) > answered + in_flight + 40)
    failed = running.failures
    assert 0 < len(failed) < in_flight, "the other worker's requests go on"
    assert all(answer.status in (0, 200) and answer.error for answer in failed)
    ledger = await ledger_of(cluster, running.answers)
    assert_exact(running.answers, ledger)
    counts = {told.id: told.generated for told in await generated(cluster)}
    for answer in failed:
        if not answer.request_id:
            continue  # cut before the first byte: there is nothing to find it by
        row = ledger[answer.request_id]
        assert row.status == "cut"
        assert answer.tokens <= row.completion_tokens <= counts[answer.request_id]


async def test_the_bus_away_for_half_a_minute_and_the_database_for_a_minute_cost_no_request(
    cluster: Cluster,
) -> None:
    before = await healthy(cluster)
    sequence = last_sequence(cluster)
    async with traffic(cluster) as running:
        await eventually(lambda: len(running.answers) > 10)
        database = cluster.kill("postgres", signal.SIGINT)
        await eventually(lambda: len(running.answers) > 100)
        bus = cluster.kill("nats")
        await eventually(lambda: cluster.pids().get("nats", bus) != bus, BUS_AWAY_S + 10, what="the bus is back")
        await eventually(
            lambda: cluster.pids().get("postgres", database) != database, DATABASE_AWAY_S + 10, what="the database"
        )
        for part in ("scheduler", "accounting", "guard", "mirror", "gateway"):
            await ready(cluster, part, 30)
        count = len(running.answers)
        await eventually(lambda: len(running.answers) > count + 40)
    assert running.failures == []
    assert len(running.answers) > 20 * DATABASE_AWAY_S
    assert engines(cluster) == before
    ledger = await ledger_of(cluster, running.answers, 60)
    assert len(ledger) == len(running.answers)
    assert_exact(running.answers, ledger)
    assert not LOST_TAGS & set(tags_since(cluster, sequence))


async def test_a_killed_engine_costs_only_answers_that_had_begun_and_comes_back_explained(cluster: Cluster) -> None:
    before = await healthy(cluster)
    shard, pid = sorted(before.items())[0]
    async with traffic(cluster, max_tokens=300) as running:
        await eventually(lambda: len(running.answers) > 20)
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: len(engines(cluster)) == 2 and shard not in engines(cluster), 40, every_s=0.1)
        count = len(running.answers)
        await eventually(lambda: len(running.answers) > count + 40)
    for answer in running.failures:
        assert answer.status == 200, answer
        assert answer.tokens > 0, answer
        assert "stopped before the answer was complete" in answer.error
    explained = cluster.text("explain", MODEL)
    assert "2 of 2 replicas ready" in explained
    assert f"replica {shard.rsplit('-', 1)[0]} of {MODEL} failed" in explained
    ledger = await ledger_of(cluster, running.answers)
    assert_exact(running.answers, ledger)
    for answer in running.failures:
        row = ledger[answer.request_id]
        assert row.status == "upstream_error"
        assert row.completion_tokens >= answer.tokens


async def test_a_killed_agent_takes_its_engines_over_again(cluster: Cluster) -> None:
    before = await healthy(cluster)
    sequence = last_sequence(cluster)
    agent = next(iter(shards(cluster).values()))["agent"]
    async with traffic(cluster) as running:
        await back(cluster, agent, cluster.kill(agent))
        await eventually(lambda: "shard.adopted.v1" in tags_since(cluster, sequence), every_s=0.3)
    assert engines(cluster) == before
    assert running.failures == []


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_all_agents_frozen_cost_no_request(cluster: Cluster) -> None:
    before = await healthy(cluster)
    sequence = last_sequence(cluster)
    agents = [pid for part, pid in cluster.pids().items() if part.startswith("nodeagent")]
    async with traffic(cluster) as running:
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        try:
            frozen = time.monotonic()
            await eventually(lambda: "system.placing_paused.v1" in tags_since(cluster, sequence), 60)
            await eventually(lambda: time.monotonic() - frozen > 12)
            count = len(running.answers)
            await eventually(lambda: len(running.answers) > count + 40, 60)
        finally:
            for pid in agents:
                os.kill(pid, signal.SIGCONT)
        await eventually(lambda: "system.placing_resumed.v1" in tags_since(cluster, sequence), 150, every_s=1)
        count = len(running.answers)
        await eventually(lambda: len(running.answers) > count + 40, 60)
    assert running.failures == []
    assert engines(cluster) == before
    assert "replica.placed.v1" not in tags_since(cluster, sequence)


async def test_a_whole_node_killed_is_replaced(cluster: Cluster) -> None:
    await healthy(cluster)
    ready_shards = shards(cluster)
    agent = next(iter(ready_shards.values()))["agent"]
    gone = {shard: r["process"]["pid"] for shard, r in ready_shards.items() if r["agent"] == agent}
    async with traffic(cluster) as running:
        await eventually(lambda: len(running.answers) > 10)
        cluster.kill(agent)
        for pid in gone.values():
            os.kill(pid, signal.SIGKILL)
        await eventually(
            lambda: len(engines(cluster)) == 2 and not gone.keys() & engines(cluster).keys(), 40, every_s=0.1
        )
        count = len(running.answers)
        await eventually(lambda: len(running.answers) > count + 40)
    for answer in running.failures:
        assert answer.status == 200, answer
        assert answer.tokens > 0, answer
    assert "2 of 2 replicas ready" in cluster.text("explain", MODEL)


def test_paths_of_the_state_directory_are_as_this_page_assumes(cluster: Cluster) -> None:
    assert Path(cluster.state_dir / "secrets" / "fleet.secret").exists()
    assert len(shards(cluster)) == 2
