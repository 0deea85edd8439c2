"""The HTTP server clients speak to: uvicorn on uvloop and httptools, on a socket that is already open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ON_DISCONNECT = "llmgw.on_disconnect"
"""Key of a scope: a function that is called once when the client's connection ends before the answer does."""


HOLD_HEAD = "llmgw.hold_head"
"""Key of a scope: a function after which what is written next goes out together with what is written after it."""


class _Joining:
    """A transport that can put an answer's head and the beginning of its body into one write, and one packet."""

    __slots__ = ("_held", "_hold", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._hold = False
        self._held = b""

    def hold(self) -> None:
        self._hold = True

    def write(self, data: bytes) -> None:
        if self._hold:
            self._hold = False
            self._held = data
        elif self._held:
            data = self._held + data
            self._held = b""
            self._transport.write(data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        if self._held:
            self._transport.write(self._held)
            self._held = b""
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ClientConnection(HttpToolsProtocol):
    """uvicorn's, which also calls back when a client leaves, and joins heads and bodies.

    ASGI alone needs a waiting task for each request for the one, and cannot do the other.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._joining = _Joining(transport)
        super().connection_made(cast(asyncio.Transport, self._joining))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[HOLD_HEAD] = self._joining.hold

    def connection_lost(self, exc: Exception | None) -> None:
        cycle = self.cycle
        super().connection_lost(exc)
        if cycle is not None and not cycle.response_complete:
            scope = cast("dict[str, Any]", cycle.scope)
            on_disconnect: Callable[[], None] | None = scope.get(ON_DISCONNECT)
            if on_disconnect is not None:
                on_disconnect()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the service's matter."""
        yield


class HttpServer:
    """Serves an ASGI application until it is stopped; requests in flight then have ``drain_s`` to end."""

    def __init__(self, application: Any, listening: socket.socket, keep_alive_s: int, drain_s: float) -> None:
        config = uvicorn.Config(
            application,
            http=ClientConnection,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_s,
            timeout_graceful_shutdown=max(1, round(drain_s)),
        )
        self._server = _Server(config)
        self._listening = listening
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended while it was starting")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
