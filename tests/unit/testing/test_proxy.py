from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from libs.testing import eventually
from libs.testing.proxy import TcpProxy


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    serving: set[asyncio.Task[None]] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with contextlib.suppress(OSError):
            while data := await reader.read(1024):
                writer.write(data)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with TcpProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as between:
        yield between
    server.close()
    await asyncio.gather(*serving)


async def ask(proxy: TcpProxy, what: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(what)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_forwards_all_bytes_and_the_end(proxy: TcpProxy) -> None:
    text = b"abc" * 200_000
    assert await ask(proxy, text) == text
    await eventually(lambda: proxy.open == 0)


async def test_cut_resets_and_takes_new_connections(proxy: TcpProxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"x")
    assert await reader.read(1) == b"x"
    await proxy.cut()
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    writer.close()
    assert await ask(proxy, b"again") == b"again"


async def test_refuse_then_heal_on_the_same_port(proxy: TcpProxy) -> None:
    port = proxy.port
    await proxy.refuse()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
    await proxy.heal()
    assert proxy.port == port
    assert await ask(proxy, b"back") == b"back"


async def test_freeze_moves_nothing_until_healed(proxy: TcpProxy) -> None:
    proxy.freeze()
    asking = asyncio.create_task(ask(proxy, b"held"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 0.1)
    await proxy.heal()
    assert await asking == b"held"


async def test_delay_holds_each_direction(proxy: TcpProxy) -> None:
    proxy.delay(0.05)
    start = time.monotonic()
    assert await ask(proxy, b"slow") == b"slow"
    assert time.monotonic() - start >= 0.1
