"""A TCP proxy that misbehaves on command: between a client and a real server, for tests of bad networks."""

from __future__ import annotations

import asyncio
import contextlib
import socket

CHUNK_BYTES = 64 * 1024


class TcpProxy:
    """Forwards ``127.0.0.1:port`` to ``target`` and can cut, refuse, delay and freeze.

    ``cut`` ends every connection by a reset; new ones are taken. ``refuse`` cuts and takes no new ones. ``freeze``
    keeps connections and moves no byte (a network that swallows packets). ``delay(seconds)`` holds every chunk that
    long in each direction, in order. ``heal`` undoes all of it.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self.accepted = 0
        self._server: asyncio.Server | None = None
        self._moving = asyncio.Event()
        self._moving.set()
        self._delay_s = 0.0
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def start(self) -> TcpProxy:
        """Listen, the first time on a free port, later on the same again."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aenter__(self) -> TcpProxy:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def stop(self) -> None:
        """Listen no more and reset what is open."""
        await self.refuse()

    async def cut(self) -> None:
        """Reset every open connection."""
        tasks = list(self._connections)
        for writers in self._connections.values():
            for writer in writers:
                _reset(writer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refuse(self) -> None:
        """Reset every open connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    def freeze(self) -> None:
        """Move no byte, keep the connections."""
        self._moving.clear()

    def delay(self, seconds: float) -> None:
        """Hold every chunk for ``seconds`` in each direction."""
        self._delay_s = seconds

    async def heal(self) -> None:
        """Forward as before."""
        self._delay_s = 0.0
        self._moving.set()
        if self._server is None:
            await self.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        writers = self._connections[task] = [writer]
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target)
            writers.append(there_writer)
            pumps = [
                asyncio.create_task(self._pump(reader, there_writer)),
                asyncio.create_task(self._pump(there_reader, writer)),
            ]
            try:
                await asyncio.gather(*pumps)
            finally:
                for pump in pumps:
                    pump.cancel()
        except (OSError, asyncio.CancelledError):
            # A target that is away is a reset to the client; a cancellation is `cut`.
            for each in writers:
                _reset(each)
        finally:
            del self._connections[task]
            for each in writers:
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)

        async def write() -> None:
            while True:
                due, data = await queue.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await self._moving.wait()
                if not data:
                    with contextlib.suppress(OSError):
                        sink.write_eof()
                    return
                sink.write(data)
                await sink.drain()

        writing = asyncio.create_task(write())
        try:
            while True:
                data = await source.read(CHUNK_BYTES)
                await queue.put((loop.time() + self._delay_s, data))
                if not data:
                    break
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, as a broken network or a killed process does, instead of an orderly end."""
    plain: socket.socket | None = writer.get_extra_info("socket")
    if plain is not None and plain.fileno() >= 0:
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    transport = writer.transport
    transport.abort()
