"""Engines that answer oddly, and bodies that are odd themselves: an answer or one clear sentence, never a traceback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from libs.bus import Bus
from libs.events.views import Endpoint

from .conftest import CHAT, Client, World
from .test_protocols import READING, asked


class Fixed:
    """An engine that answers every request with the same bytes."""

    def __init__(self) -> None:
        self.answer = b""
        self.kind = "application/json"
        self.bodies: list[bytes] = []

    async def start(self) -> Endpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        port = self._server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        self.endpoint = Endpoint(replica_id="fixed", url=url, machine_id="here", served_name="sim")
        return self.endpoint

    async def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            self.bodies.append(await reader.readexactly(length))
            size = len(self.answer)
            said = (
                f"HTTP/1.1 200 OK\r\ncontent-type: {self.kind}\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n"
            )
            writer.write(said.encode() + self.answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def fixed(world: World) -> AsyncIterator[Fixed]:
    engine = Fixed()
    await world.route(await engine.start(), capabilities=())
    yield engine
    await engine.stop()


@pytest.fixture
async def gateway(fixed: Fixed, world: World, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    return await world.gateway(await connect_as("gateway"))


SPEAKING = (CHAT, "/v1/messages", "/v1/responses")


def whole(message: str) -> bytes:
    return f'{{"choices":[{{"index":0,"message":{message},"finish_reason":"stop"}}]}}'.encode()


def stream(*deltas: str) -> bytes:
    chunks = [f'data: {{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}\n\n' for delta in deltas]
    end = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    return "".join([*chunks, end]).encode()


async def test_half_a_character_is_mended_and_takes_no_model_away(fixed: Fixed, gateway: Client) -> None:
    for _ in range(8):
        fixed.answer, fixed.kind = whole(r'{"role":"assistant","content":"half \ud83d end"}'), "application/json"
        for path in SPEAKING:
            response = await gateway.send("POST", path, asked(path))
            assert response.status == 200, response.body
            assert "half \ufffd end" in json.dumps(response.json, ensure_ascii=False)
    fixed.answer, fixed.kind = stream(r'{"content":"a\ud83d"}', r'{"content":"\ude00b"}'), "text/event-stream"
    for path in SPEAKING:
        response = await gateway.send("POST", path, asked(path, stream=True))
        assert response.status == 200
        if path != CHAT:
            assert '"a"' in response.body.decode()
            assert "\U0001f600b" in response.body.decode()


async def test_half_a_character_in_a_request(fixed: Fixed, gateway: Client) -> None:
    fixed.answer = whole('{"role":"assistant","content":"yes"}')
    for path in SPEAKING:
        body = json.dumps(asked(path)).replace("hello", r"h\ud83dllo \ud83d\ude00").encode()
        assert (await gateway.send("POST", path, body)).status == 200
        assert "h\ufffdllo \U0001f600" in json.dumps(json.loads(fixed.bodies[-1]), ensure_ascii=False)


async def test_an_answer_that_is_nested_too_deeply_is_a_failure_of_the_engine(fixed: Fixed, gateway: Client) -> None:
    for kind, answer in (
        ("application/json", b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("text/event-stream", b'data: {"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"),
    ):
        fixed.answer, fixed.kind = answer, kind
        for path in (*SPEAKING, *(READING if kind == "application/json" else ())):
            more = {"stream": True} if kind == "text/event-stream" else {}
            response = await gateway.send("POST", path, asked(path, **more))
            if path == CHAT and more:
                continue  # what is no chunk is passed on as it is
            assert response.status in (502, 503), (path, kind, response.status, response.body[:300])
            assert b"Traceback" not in response.body


async def test_a_field_that_stands_twice_is_refused_wherever_it_is(fixed: Fixed, gateway: Client) -> None:
    fixed.answer = whole('{"role":"assistant","content":"yes"}')
    for body, name in (
        (b'{"model":"sim","max_tokens":5,"messages":[{"role":"user","content":"a","content":"b"}]}', "content"),
        (b'{"model":"sim","max_tokens":5,"max_tokens":50000,"messages":[{"role":"user","content":"a"}]}', "max_tokens"),
    ):
        for path in (CHAT, "/v1/messages", "/v1/messages/count_tokens"):
            response = await gateway.send("POST", path, body)
            assert response.status == 400
            assert f"'{name}' stands twice" in response.error["message"]
    assert fixed.bodies == []


async def test_numbers_reach_the_engine_as_they_were_spelt(fixed: Fixed, gateway: Client) -> None:
    fixed.answer = whole('{"role":"assistant","content":"yes"}')
    spelt = b"0.30000000000000004441"
    for path in SPEAKING:
        body = json.dumps(asked(path, temperature=9, odd={"n": 8})).encode()
        body = body.replace(b'"temperature": 9', b'"temperature": ' + spelt).replace(b'"n": 8', b'"n": 1.10')
        assert (await gateway.send("POST", path, body)).status == 200
        assert spelt in fixed.bodies[-1]
        assert b"1.10" in fixed.bodies[-1]
