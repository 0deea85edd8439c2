"""A request is one span with the GenAI names, the engine is in the same trace, and no text is in either."""

from __future__ import annotations

import asyncio
from pathlib import Path

from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import Client, GatewayProcess, World

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """Takes OTLP over HTTP and keeps the bytes; answers as an engine on the same port too, to see its headers."""

    def __init__(self) -> None:
        self.spans = b""
        self.heads: list[str] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].split("\r\n")[0])
        body = await reader.readexactly(size)
        if "/v1/traces" in head:
            self.spans += body
            answer = b""
        else:
            self.heads.append(head)
            answer = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(answer), answer))
        await writer.drain()
        writer.close()


async def test_one_span_a_request(world: World, tmp_path: Path) -> None:
    collector = Collector()
    await collector.start()
    engine = SimEngine(tmp_path / "none")
    engine.port = collector.port
    await world.route(engine)
    process = GatewayProcess(
        tmp_path / "gateway", world.server.url, workers=1, otlp_endpoint=f"http://127.0.0.1:{collector.port}"
    )
    world._stack.callback(process.stop)
    await asyncio.to_thread(process.start)
    client = Client(process.port)
    response = await client.chat("secret words", headers=(f"traceparent: 00-{TRACE}-b7ad6b7169203331-01",))
    assert response.status == 200
    await asyncio.to_thread(process.stop)
    await eventually(lambda: response.request_id.encode() in collector.spans)
    collector.stop()
    for word in (b"gen_ai.usage.output_tokens", b"gen_ai.request.model", b"POST /v1/chat/completions"):
        assert word in collector.spans
    assert bytes.fromhex(TRACE) in collector.spans
    assert b"secret" not in collector.spans
    (head,) = collector.heads
    assert f"traceparent: 00-{TRACE}-" in head
    assert "b7ad6b7169203331" not in head
