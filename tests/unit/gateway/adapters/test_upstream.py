"""The client engines are asked with, against servers that answer byte for byte what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from libs.testing import eventually
from services.gateway.adapters.upstream import HIGH_WATER_BYTES, IDLE_S, Abandoned, Connection, Pool, UpstreamFailure

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"POST /v1/x HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n"


class Engine:
    """Runs a script for each connection."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.script: Script | None = None
        self.server: asyncio.Server | None = None

    async def start(self) -> Pool:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Pool(f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}", 1.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        assert self.script is not None
        try:
            await self.script(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def answers(self, *pieces: bytes, close: bool = False) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                self.requests += 1
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if close:
                    return

        self.script = script


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    yield engine
    if engine.server is not None:
        engine.server.close()


async def ask(pool: Pool, connection: Connection | None = None) -> Connection:
    connection = connection or pool.idle() or await pool.connect()
    connection.send(REQUEST, b"{}")
    return connection


async def test_a_connection_is_used_again(engine: Engine) -> None:
    pool = await engine.start()
    engine.answers(b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ncontent-length: 5\r\n\r\nhello")
    for _ in range(3):
        connection = await ask(pool)
        assert await connection.head() == 200
        assert connection.content_type == b"a/b"
        assert await connection.read_all(100) == b"hello"
        connection.release()
    assert (engine.connections, engine.requests) == (1, 3)
    pool.close()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_a_chunked_answer_in_pieces_of_any_size(engine: Engine, size: int) -> None:
    pool = await engine.start()
    raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n"
    engine.answers(*(raw[at : at + size] for at in range(0, len(raw), size)))
    connection = await ask(pool)
    assert await connection.head() == 200
    assert await connection.read_all(100) == b"hello, world"
    connection.release()
    assert pool.idle() is connection
    pool.close()


async def test_an_answer_that_ends_with_its_connection(engine: Engine) -> None:
    pool = await engine.start()
    engine.answers(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", close=True)
    connection = await ask(pool)
    assert await connection.head() == 200
    assert await connection.read_all(100) == b"hello"
    connection.release()
    assert pool.idle() is None


async def test_what_ends_too_early_is_a_failure(engine: Engine) -> None:
    pool = await engine.start()
    for pieces in (
        (b"",),
        (b"HTTP/1.1 200 OK\r\ncontent-le",),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",),
    ):
        engine.answers(*pieces, close=True)
        connection = await ask(pool, await pool.connect())
        with pytest.raises(UpstreamFailure) as caught:
            await _whole(connection)
        assert caught.value.kind == "closed"


async def _whole(connection: Connection) -> bytes:
    await connection.head()
    return await connection.read_all(1000)


async def test_what_is_not_http_and_what_is_too_long(engine: Engine) -> None:
    pool = await engine.start()
    engine.answers(b"SSH-2.0-x\r\n\r\n")
    with pytest.raises(UpstreamFailure, match="protocol"):
        await (await ask(pool)).head()
    engine.answers(b"HTTP/1.1 200 OK\r\nx: %s\r\n\r\n" % (b"y" * 100_000))
    with pytest.raises(UpstreamFailure, match="protocol"):
        await (await ask(pool)).head()
    engine.answers(b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n" + b"z" * 2000)
    with pytest.raises(UpstreamFailure, match="over 1000 bytes"):
        await _whole(await ask(pool))


async def test_nobody_there() -> None:
    pool = Pool("http://127.0.0.1:1", 1.0)
    with pytest.raises(UpstreamFailure, match="connect"):
        await pool.connect()
    with pytest.raises(ValueError, match="http://host:port"):
        Pool("ftp://x", 1.0)


async def test_a_continue_is_not_the_answer(engine: Engine) -> None:
    pool = await engine.start()
    engine.answers(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n")
    connection = await ask(pool)
    assert await connection.head() == 201
    assert await connection.read() == b""
    pool.close()
    connection.abort()


async def test_giving_up_closes_the_connection_at_once(engine: Engine) -> None:
    pool = await engine.start()
    gone = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await reader.readexactly(2)
        await reader.read()
        gone.set()

    engine.script = script
    connection = await ask(pool)
    assert await connection.head() == 200
    assert await connection.read() == b"hello"
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    connection.abort()
    with pytest.raises(Abandoned):
        await reading
    await asyncio.wait_for(gone.wait(), 1)


async def test_a_fast_engine_waits_for_a_slow_client(engine: Engine) -> None:
    pool = await engine.start()
    total = 40 * HIGH_WATER_BYTES
    engine.answers(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total, *[b"x" * 65536] * (total // 65536))
    connection = await ask(pool)
    assert await connection.head() == 200
    await eventually(lambda: connection._paused)
    assert connection._held_bytes < total / 4
    assert len(await connection.read_all(total)) == total
    connection.release()
    assert pool.idle() is connection
    pool.close()


async def test_deadline_and_stall(engine: Engine) -> None:
    pool = await engine.start()
    engine.answers(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello")
    now = asyncio.get_running_loop().time()
    connection = await ask(pool)
    connection.deadline = now + 100
    await connection.head()
    await connection.read()
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    connection.check(now + 99, 1)
    assert not reading.done()
    connection.deadline = None
    connection.check(now + 1.5, 2)
    await asyncio.sleep(0)
    assert not reading.done()
    connection.check(now + 102, 100)
    with pytest.raises(UpstreamFailure, match="stalled"):
        await reading


async def test_idle_connections_are_closed_before_the_engine_does_it(engine: Engine) -> None:
    pool = await engine.start()
    engine.answers(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    connection = await ask(pool)
    await connection.head()
    connection.release()
    pool.sweep(asyncio.get_running_loop().time() + IDLE_S + 1)
    assert pool.idle() is None


@pytest.mark.parametrize("together", [True, False])
async def test_an_answer_nobody_asked_for_ends_the_connection(engine: Engine, together: bool) -> None:
    pool = await engine.start()
    answers = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad"]
    engine.answers(*([b"".join(answers)] if together else answers))
    connection = await ask(pool)
    assert await _whole(connection) == b"ok"
    connection.release()
    await eventually(lambda: not connection.usable)
    assert pool.idle() is None


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
async def test_what_is_poured_wakes_nobody_until_it_must(engine: Engine, size: int) -> None:
    pool = await engine.start()
    body = b"".join(b"%d;" % n for n in range(40)) + b"end;rest"
    raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    raw += b"".join(b"5\r\n%b\r\n" % body[at : at + 5] for at in range(0, len(body) // 5 * 5, 5))
    left = body[len(body) // 5 * 5 :]
    raw += (b"%x\r\n%b\r\n" % (len(left), left) if left else b"") + b"0\r\n\r\n"
    engine.answers(*(raw[at : at + size] for at in range(0, len(raw), size)))
    connection = await ask(pool)
    assert await connection.head() == 200
    poured: list[bytes] = []

    def into(data: bytes) -> bytes | None:
        poured.append(data)
        return b"".join(poured) if b"end" in b"".join(poured) else None

    said = await connection.pour(into)
    assert said is not None
    assert said.startswith(body[: body.index(b"end") + 3])
    rest: list[bytes] = []
    assert await connection.pour(lambda data: rest.append(data)) is None
    assert said + b"".join(rest) == body
    connection.release()
    assert pool.idle() is connection
    pool.close()


async def test_pouring_ends_with_what_goes_wrong(engine: Engine) -> None:
    pool = await engine.start()

    def refuses(data: bytes) -> bytes | None:
        raise ValueError(data.decode())

    head = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"
    for pieces in ((head + b"bad",), (head, b"bad")):
        engine.answers(*pieces)
        connection = await ask(pool)
        await connection.head()
        with pytest.raises(ValueError, match="bad"):
            await connection.pour(refuses)
        connection.abort()
    engine.answers(head, b"good", close=True)
    connection = await ask(pool)
    await connection.head()
    poured: list[bytes] = []
    with pytest.raises(UpstreamFailure, match="closed"):
        await connection.pour(lambda data: poured.append(data))
    assert b"".join(poured) == b"good"
    engine.answers(head, b"some")
    connection = await ask(pool)
    await connection.head()
    task = asyncio.create_task(connection.pour(lambda data: poured.append(data)))
    await eventually(lambda: poured[-1] == b"some")
    now = asyncio.get_running_loop().time()
    connection.check(now, 5.0)
    assert not task.done()
    connection.check(now + 10, 5.0)
    with pytest.raises(UpstreamFailure, match="stalled"):
        await task
    pool.close()
