"""Processes and connections that die: what was answered is counted once, what was cut once as cut."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from libs.bus import Bus, BusSettings, connect
from libs.testing import eventually
from libs.testing.engine import SimEngine
from libs.testing.proxy import TcpProxy
from libs.testing.traffic import Traffic
from tests.integration.gateway.conftest import KEY, Client, GatewayProcess, World, gateway, world

__all__ = ["gateway", "world"]


async def running(world: World, directory: Path, **settings: object) -> GatewayProcess:
    process = GatewayProcess(directory / "gateway", world.server.url, **settings)
    world._stack.callback(process.stop)
    await asyncio.to_thread(process.start)
    await eventually(lambda: len(process.workers()) == 2)
    return process


async def test_a_killed_worker_fails_only_its_own_requests(world: World, sim_engine: SimEngine, tmp_path: Path) -> None:
    await world.route(sim_engine)
    await asyncio.to_thread(sim_engine.behave, tok_s=100)
    process = await running(world, tmp_path)
    async with Traffic(f"http://127.0.0.1:{process.port}/v1", KEY, "sim", rate=30, max_tokens=40) as traffic:
        await eventually(lambda: len(traffic.answers) > 10)
        victim = process.workers()[0]
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: len(process.workers()) == 2 and victim not in process.workers())
        at = len(traffic.answers)
        await eventually(lambda: len(traffic.answers) > at + 30)
        answers = await traffic.stop()
    failed = [answer for answer in answers if not answer.ok]
    assert len(failed) < 30
    assert all(answer.tokens or answer.status == 0 for answer in failed)
    wanted = {answer.request_id: answer for answer in answers if answer.request_id}
    await eventually(lambda: wanted.keys() <= world.records.keys(), 10)
    engine = sim_engine.requests()
    for request_id, answer in wanted.items():
        record = world.records[request_id]
        if answer.ok:
            assert (record.status, record.completion_tokens) == ("ok", answer.completion_tokens)
            assert record.prompt_tokens == answer.prompt_tokens
        else:
            assert record.status in ("cut", "ok")
            assert answer.tokens <= record.completion_tokens <= engine[request_id]["generated"]
    cut = [record for record in world.records.values() if record.status == "cut"]
    assert cut
    assert {batch.gateway_id[:4] for batch in world.batches} == {"gw-1", "gw-2"}
    assert len({batch.gateway_id for batch in world.batches}) == 2, "the one that was killed is the same again"


async def test_the_parent_answers_for_all_and_stops_in_order(
    world: World, sim_engine: SimEngine, tmp_path: Path
) -> None:
    await world.route(sim_engine)
    process = await running(world, tmp_path, stop_timeout_s=10)
    client, status = Client(process.port), Client(process.status_port)
    responses = await asyncio.gather(*(client.chat(stream=True) for _ in range(12)))
    assert {response.status for response in responses} == {200}

    async def all_counted() -> bool:
        text = (await status.send("GET", "/metrics", key=None)).body.decode()
        line = 'llmgw_gateway_requests_total{model="sim",route="/v1/chat/completions",status="200"} 12.0'
        return line in text and "llmgw_gateway_first_token_seconds_count" in text

    await eventually(all_counted)
    assert (await status.send("GET", "/health", key=None)).status == 200
    await asyncio.to_thread(sim_engine.behave, tok_s=50)
    last = asyncio.create_task(client.chat(stream=True, max_tokens=60))
    await eventually(lambda: any(r["state"] == "running" for r in sim_engine.requests().values()))
    await asyncio.to_thread(process.stop)
    response = await last
    assert response.events[-1] == "[DONE]"
    assert (await world.record(response.request_id)).status == "ok"
    with pytest.raises(ConnectionRefusedError):
        await client.chat()


async def test_workers_share_the_connections_of_one_client(world: World, sim_engine: SimEngine, tmp_path: Path) -> None:
    await world.route(sim_engine)
    process = await running(world, tmp_path)
    request = b"GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer %b\r\n\r\n" % KEY.encode()
    kept = []

    async def another() -> list[int]:
        """One connection more, which is kept; how many sockets each worker has then."""
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        kept.append(writer)
        writer.write(request)
        assert (await reader.readuntil(b"\r\n")).endswith(b" 200 OK\r\n")
        return [_sockets(worker) for worker in process.workers()]

    # The first is ready before the second on a busy machine; as soon as both are, who has fewer gets the next ones. A
    # few of each are to the bus, the engine and the parent.
    await eventually(lambda: _both_have(another, 10), 60, every_s=0)
    for _ in range(40):
        connections = await another()
    assert max(connections) - min(connections) <= 14, connections
    for writer in kept:
        writer.transport.abort()


async def _both_have(another: Callable[[], Awaitable[list[int]]], sockets: int) -> bool:
    return min(await another()) >= sockets


def _sockets(pid: int) -> int:
    """Open sockets of a process."""
    directory = Path(f"/proc/{pid}/fd")
    return sum(os.readlink(each).startswith("socket:") for each in list(directory.iterdir()) if os.path.islink(each))


async def test_workers_end_with_their_parent(world: World, sim_engine: SimEngine, tmp_path: Path) -> None:
    await world.route(sim_engine)
    process = await running(world, tmp_path, stop_timeout_s=5)
    workers = process.workers()
    process.kill()
    await eventually(lambda: not any(_alive(pid) for pid in workers), 15)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_requests_flow_while_the_bus_is_away_and_are_counted_afterwards(
    world: World, sim_engine: SimEngine
) -> None:
    await world.route(sim_engine)
    proxy = await TcpProxy("127.0.0.1", world.server.port).start()
    own = await connect(BusSettings(url=f"nats://127.0.0.1:{proxy.port}", identity="gateway"))
    try:
        gateway = await world.gateway(own)
        first = await gateway.chat()
        await world.record(first.request_id)
        await proxy.refuse()
        await eventually(lambda: not own.connected)
        responses = [await gateway.chat(stream=True) for _ in range(20)]
        assert {response.status for response in responses} == {200}
        unknown = await gateway.chat(key="sk-new")
        assert (unknown.status, unknown.error["code"]) == (503, "keys_unavailable")
        assert (await gateway.send("GET", "/ready", key=None)).status == 200
        await proxy.heal()
        await eventually(lambda: own.connected, 15)
        for response in responses:
            assert (await world.record(response.request_id)).status == "ok"
        await world.key("sk-new", key_id="k-new")
        await eventually(lambda: _answered(gateway, "sk-new"))
    finally:
        await world._stack.aclose()
        await own.close()
        await proxy.stop()


async def _answered(gateway: Client, key: str) -> bool:
    return (await gateway.chat(key=key)).status == 200


async def test_two_gateways_share_a_limit(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.key("sk-ten", key_id="k-ten", rpm=10)
    await world.route(sim_engine)
    gateways = [await world.gateway(await connect_as("gateway"), f"gw-{n}") for n in (1, 2)]
    statuses: list[int] = []
    for turn in range(30):
        statuses.append((await gateways[turn % 2].chat(key="sk-ten", max_tokens=1)).status)
        await asyncio.sleep(0.05)
    assert 10 <= statuses.count(200) <= 11
    await eventually(lambda: _used(gateways) == [statuses.count(200)] * 2)


def _used(gateways: list[Client]) -> list[int]:
    import time

    return [
        g.service._gossip.counts.used("k-ten", time.monotonic()).requests for g in gateways if g.service is not None
    ]
