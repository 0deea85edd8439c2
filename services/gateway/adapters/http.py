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


class ClientConnection(HttpToolsProtocol):
    """uvicorn's, which also calls back when a client leaves: ASGI alone needs a waiting task a request for that."""

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
