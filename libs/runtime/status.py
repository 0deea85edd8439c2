"""The status port of a process: /health (it lives), /ready (it can do its work, or why not), /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from libs.bus import supervise

from . import metrics
from .cannot_start import CannotStart


class PortTaken(CannotStart):
    """The status port cannot be listened on."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to the process's own life cycle.
        yield


def application(service: str, not_ready: Callable[[], list[str]]) -> Starlette:
    """The three routes. ``not_ready`` gives the reasons why the process cannot do its work; empty when it can."""

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "alive", "service": service})

    async def ready(request: Request) -> Response:
        reasons = not_ready()
        if reasons:
            return JSONResponse({"status": "not ready", "service": service, "reasons": reasons}, status_code=503)
        return JSONResponse({"status": "ready", "service": service})

    async def measured(request: Request) -> Response:
        return Response(metrics.exposition(), media_type=metrics.CONTENT_TYPE)

    return Starlette(routes=[Route("/health", health), Route("/ready", ready), Route("/metrics", measured)])


class StatusServer:
    """Serves ``application`` on host and port from ``start`` to ``stop``."""

    def __init__(
        self, service: str, host: str, port: int, not_ready: Callable[[], list[str]], fail: Callable[[str], None]
    ) -> None:
        self._fail = fail
        self._address = (host, port)
        self._application = application(service, not_ready)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises PortTaken."""
        host, port = self._address
        try:
            listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise PortTaken(
                f"status port {host}:{port} cannot be used ({error.strerror}); set status_port to a free one"
            ) from None
        config = uvicorn.Config(self._application, log_config=None, access_log=False, lifespan="off")
        self._server = server = _Server(config)
        self._task = supervise(lambda: server.serve(sockets=[listening]), name="status server", fail=self._fail)

    async def stop(self) -> None:
        """Close the port. Answers that are under way are cut off."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        # Nobody's answer is worth waiting for here: health checks come again.
        self._server.force_exit = True
        await self._task
        self._server = None
