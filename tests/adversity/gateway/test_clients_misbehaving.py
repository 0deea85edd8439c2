"""Clients that send slowly, too much, ahead of time, or take nothing: they cost nobody else anything."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from libs.testing import eventually
from libs.testing.engine import SimEngine
from services.gateway.http import server
from tests.integration.gateway.conftest import CHAT, KEY, Client, World, gateway, world

__all__ = ["gateway", "world"]


def request(max_tokens: int = 8, text: str = "hello", *, length: int | None = None, headers: str = "") -> bytes:
    body = json.dumps(
        {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "stream": True}
    ).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {KEY}\r\n{headers}"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


async def connected(gateway: Client) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", gateway.port)


async def nothing_left(gateway: Client) -> None:
    service = gateway.service
    assert service is not None
    await eventually(
        lambda: service._router.in_flight == 0 and not service._dispatcher._busy, what="nothing is in flight"
    )
    assert all(target.own == 0 for target in service._routes.targets.values())


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n", request(length=5000)])
async def test_who_does_not_end_what_it_began_to_send_is_hung_up_on(
    world: World, sim_engine: SimEngine, connect_as, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "BODY_S", 1.0)
    monkeypatch.setattr(server, "LOOKED_AT_EVERY_S", 0.1)
    await world.route(sim_engine)
    gateway = await world.gateway(await connect_as("gateway"), keep_alive_s=1)
    reader, writer = await connected(gateway)
    writer.write(sent)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        async with asyncio.timeout(5):
            await reader.readexactly(1)
    writer.close()
    await nothing_left(gateway)


async def test_a_slow_sender_is_not_hung_up_on_while_its_earlier_answer_comes(
    world: World, sim_engine: SimEngine, connect_as, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BODY_S", 0.3)
    monkeypatch.setattr(server, "LOOKED_AT_EVERY_S", 0.05)
    await asyncio.to_thread(sim_engine.behave, tok_s=20)
    await world.route(sim_engine)
    gateway = await world.gateway(await connect_as("gateway"), keep_alive_s=1)
    for ahead in (b"POST /v1/ch", request(length=5000)):
        reader, writer = await connected(gateway)
        writer.write(request(30) + ahead)
        async with asyncio.timeout(10):
            assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")
        writer.close()


async def test_the_head_of_a_request_has_a_limit(gateway: Client) -> None:
    reader, writer = await connected(gateway)
    writer.write(b"GET /v1/models HTTP/1.1\r\nx: ")
    for _ in range(40):
        writer.write(b"y" * 50_000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
    writer.close()
    assert (await gateway.chat()).status == 200


@pytest.mark.parametrize("headers", ["connection: close\r\n", ""])
async def test_an_answer_to_a_request_that_is_not_sent_to_its_end_arrives(gateway: Client, headers: str) -> None:
    for _ in range(5):
        reader, writer = await connected(gateway)
        writer.write(request(text="x" * 25_000_000, headers=headers))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        assert b"over the limit" in await reader.readexactly(int(length.split()[1]))
        writer.close()


async def test_who_leaves_with_requests_sent_ahead_stops_the_one_that_runs(
    gateway: Client, sim_engine: SimEngine
) -> None:
    await asyncio.to_thread(sim_engine.behave, tok_s=5)
    reader, writer = await connected(gateway)
    writer.write(request(1000) + request(1000) + request(1000))
    await reader.readuntil(b"data: ")
    writer.transport.abort()
    await nothing_left(gateway)


async def test_requests_sent_ahead_are_answered_in_order(gateway: Client) -> None:
    reader, writer = await connected(gateway)
    writer.write(request(2) * 5)
    async with asyncio.timeout(10):
        for _ in range(5):
            assert (await reader.readuntil(b"0\r\n\r\n")).count(b"[DONE]") == 1
    writer.close()


async def test_who_takes_nothing_of_its_answer_is_hung_up_on(
    gateway: Client, sim_engine: SimEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TAKES_NOTHING_S", 0.5)
    monkeypatch.setattr(server, "LOOKED_AT_EVERY_S", 0.1)
    await asyncio.to_thread(sim_engine.behave, tok_s=1_000_000, echo=True)
    _, writer = await connected(gateway)
    writer.transport.pause_reading()
    writer.write(request(4000, "long " * 4000 + "w" * 1000))
    service = gateway.service
    assert service is not None
    await eventually(lambda: service._router.in_flight == 1)
    await nothing_left(gateway)
    writer.close()


async def test_who_is_refused_and_goes_on_sending_is_hung_up_on_soon(
    gateway: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a body that comes a byte at a time, when its key is wrong, then it is told so and hung up on."""
    monkeypatch.setattr(server, "LINGER_S", 0.5)
    reader, writer = await connected(gateway)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer sk-wrong\r\ncontent-length: 1000000\r\n\r\n"
    writer.write(head.encode())
    assert b" 401 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)

    async def dribble() -> None:
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    dribbling = asyncio.create_task(dribble())
    try:
        async with asyncio.timeout(15):
            with contextlib.suppress(ConnectionError):
                while await reader.read(65536):
                    pass
    finally:
        dribbling.cancel()
        await asyncio.gather(dribbling, return_exceptions=True)
        writer.close()
    await nothing_left(gateway)


async def test_who_is_refused_and_sends_the_rest_keeps_its_connection(gateway: Client) -> None:
    reader, writer = await connected(gateway)
    refused = request(length=None).replace(KEY.encode(), b"sk-wrong")
    writer.write(refused[:-10])
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert b" 401 " in head
    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
    writer.write(refused[-10:] + request())
    assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    writer.close()
