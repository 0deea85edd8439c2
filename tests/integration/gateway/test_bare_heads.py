"""Answers without a body end with their head, on every path; and what pages of other origins are told in heads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from libs.bus import Bus
from services.gateway.core.protocols.operations import OPERATIONS
from services.gateway.settings import GatewaySettings

from .conftest import CHAT, KEY, Client, World
from .odd import OddEngine, saying

READ = ("/health", "/ready", "/v1/models", "/v1/models/sim", "/v1/models/none", "/api/openapi.json", "/none")
WRITTEN = tuple(kind.path for kind in OPERATIONS)


class Heads:
    """The answers on one connection, read by their heads alone: a byte of a body is a mistake."""

    def __init__(self) -> None:
        self.found: list[tuple[int, dict[str, str]]] = []

    def take(self, data: bytes) -> bytes:
        *heads, rest = data.split(b"\r\n\r\n")
        for head in heads:
            first, *lines = head.decode("latin-1").split("\r\n")
            assert first.startswith("HTTP/1.1 "), f"a body in {data!r}"
            headers = dict(line.lower().split(": ", 1) for line in lines)
            self.found.append((int(first.split(" ")[1]), headers))
        return rest


async def heads_of(gateway: Client, *requests: str) -> list[tuple[int, dict[str, str]]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    heads, held = Heads(), b""
    try:
        for number, request in enumerate(requests, 1):
            writer.write((request + "\r\n\r\n").encode())
            async with asyncio.timeout(10):
                while len(heads.found) < number:
                    received = await reader.read(65536)
                    assert received, "the connection was closed"
                    held = heads.take(held + received)
        assert held == b""
    finally:
        writer.close()
    return heads.found


def head_request(path: str, key: str | None = KEY) -> str:
    return f"HEAD {path} HTTP/1.1\r\nhost: g" + (f"\r\nauthorization: Bearer {key}" if key else "")


async def test_head_ends_at_the_head_on_every_path(gateway: Client) -> None:
    """Given one connection, when every path is asked for its head, with a key and without, then each comes at once."""
    paths = [*READ, *WRITTEN]
    asked = [head_request(path, key) for path in paths for key in (KEY, None)]
    found = await heads_of(gateway, *asked)
    told = dict(zip(asked, found, strict=True))
    for path in READ:
        got = await gateway.send("GET", path)
        status, headers = told[head_request(path)]
        assert status == got.status
        if path != "/none":  # whose error names the method
            assert headers["content-length"] == got.headers["content-length"], path
    assert {told[head_request(path)][0] for path in WRITTEN} == {405}
    assert told[head_request("/v1/models", None)][0] == 401


async def test_pages_of_other_origins_ask_first_and_read_errors_too(
    world: World, sim_engine: object, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    origin = "https://chat.example"
    await world.route(sim_engine)  # type: ignore[arg-type]
    gateway = await world.gateway(await connect_as("gateway"), cors_origins=(origin, "http://localhost:3000"))
    wants = "access-control-request-method: POST\r\naccess-control-request-headers: authorization, x-stainless-os"
    paths = (CHAT, "/v1/models", "/v1/models/a/b", *WRITTEN)
    found = await heads_of(gateway, *(f"OPTIONS {p} HTTP/1.1\r\nhost: g\r\norigin: {origin}\r\n{wants}" for p in paths))
    for path, (status, headers) in zip(paths, found, strict=True):
        assert status == 204, path
        assert headers["access-control-allow-origin"] == origin
        assert headers["access-control-allow-methods"] == ("get" if "models" in path else "post"), path
        assert headers["access-control-allow-headers"] == "authorization, x-stainless-os"
        assert headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in headers
        assert "content-length" not in headers
    sent = (f"origin: {origin}",)
    for stream in (False, True):
        answer = await gateway.chat(stream=stream, headers=sent)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = [
        await gateway.chat(key="sk-wrong", headers=sent),
        await gateway.chat(model="none", headers=sent),
        await gateway.send("POST", CHAT, b"{", headers=sent),
        await gateway.send("GET", "/none", headers=sent),
        await gateway.send("OPTIONS", "/none", headers=(*sent, *wants.split("\r\n"))),
        await gateway.send("DELETE", CHAT, headers=sent),
    ]
    assert [one.status for one in refused] == [401, 404, 400, 404, 404, 405]
    assert {one.headers["access-control-allow-origin"] for one in refused} == {origin}
    other = await gateway.send("OPTIONS", CHAT, headers=("origin: https://other.example", *wants.split("\r\n")))
    assert (other.status, other.headers["vary"]) == (405, "origin")
    assert "access-control-allow-origin" not in other.headers


async def test_every_origin_where_it_is_set_and_none_where_nothing_is(
    gateway: Client, world: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    sent = ("origin: https://chat.example", "access-control-request-method: GET")
    off = await gateway.send("OPTIONS", "/v1/models", headers=sent)
    assert off.status == 405
    assert not [name for name in off.headers if name.startswith("access-control") or name == "vary"]
    every = await world.gateway(await connect_as("gateway"), instance="gw-2", cors_origins=("*",))
    told = await every.send("OPTIONS", "/v1/models", headers=sent)
    assert (told.status, told.headers["access-control-allow-origin"]) == (204, "*")
    assert "access-control-allow-credentials" not in told.headers


@pytest.mark.parametrize(
    ("origins", "said"),
    [
        (("*", "https://a.example"), "stands alone"),
        (("chat.example",), "is not an origin"),
        (("https://chat.example/",), "is not an origin"),
        (("https://Chat.example",), "is not an origin"),
        (("null",), "is not an origin"),
    ],
)
def test_a_setting_that_is_no_origin_is_refused(origins: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        GatewaySettings(instance="g", data_dir=tmp_path, cors_origins=origins)


@pytest.fixture
async def engine() -> AsyncIterator[OddEngine]:
    async with AsyncExitStack() as stack:
        engine = OddEngine()
        await engine.start(stack)
        yield engine


BARE = (
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
)


async def test_an_engines_answers_without_a_body_are_answers(
    world: World, engine: OddEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.route(engine.endpoint)
    gateway = await world.gateway(await connect_as("gateway"), deadline_s=20)
    hints = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\ncontent-type: text/event-stream\r\n\r\n"
    engine.answer = b"HTTP/1.1 100 Continue\r\n\r\n" + hints + saying('"fine"')
    for stream in (False, True):
        said = await gateway.chat("hello", stream=stream)
        assert said.json["choices"][0]["message"]["content"] == "fine"
    for answer in BARE:
        engine.answer = answer
        for stream in (False, True):
            async with asyncio.timeout(10):
                assert (await gateway.chat(stream=stream)).status in (502, 503)
