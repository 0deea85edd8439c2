"""The agent's client: an answer is read to its end, with a body or without one."""

from __future__ import annotations

import asyncio

import pytest

from services.nodeagent.adapters.engine.http import Unreachable, request


async def asked(answer: bytes, method: str = "GET") -> tuple[int, bytes]:
    """What the client makes of these bytes, from a server that keeps its connection open after them."""
    held: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        held.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        said = await request(method, f"http://127.0.0.1:{port}/x", timeout_s=10)
        return said.status, said.body
    finally:
        for writer in held:
            writer.close()
        server.close()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_without_a_body_ends_at_its_head(status: bytes) -> None:
    assert await asked(b"HTTP/1.1 %b\r\netag: x\r\n\r\n" % status) == (int(status[:3]), b"")


async def test_what_comes_before_an_answer_is_not_the_answer() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    assert await asked(early + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok") == (200, b"ok")


async def test_what_is_not_http_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        await asked(b"hello\r\n\r\n")
