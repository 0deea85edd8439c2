"""The HTTP server clients speak to: uvicorn on uvloop and httptools, on a socket that is already open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any, Literal, cast

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from libs.bus import supervise
from libs.runtime.status import PortTaken

from .connection_balance import Acceptor, ConnectionBalance

log = logging.getLogger("llmgw.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send, "Channel"], Awaitable[None]]
"""ASGI's, which also gets the client's end of its request."""

BACKLOG = 2048
"""Connections the system holds that no worker has taken yet."""
HEAD_BYTES = 64 * 1024
"""A request's head may be so long, and what came in one piece with its end."""
BODY_S = 60.0
"""A client that began to send a body and then sends nothing for so long is hung up on."""
WHOLE_BODY_S = 900.0
"""20 MiB at 24 kB/s: whoever is slower than that is hung up on too."""
TAKES_NOTHING_S = 120.0
"""A client that takes nothing of its answer for so long is hung up on: it holds an engine's slot."""
LINGER_S = 5.0
"""How long what a client still sends is read and dropped after it was answered early: closed at once, the answer might
be lost on its way. Who has sent it to its end by then keeps the connection."""
LOOKED_AT_EVERY_S = 1.0
_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 34\r\nconnection: close\r\n\r\nThe head of a request is too long."
)


class _Joining:
    """A transport that can put an answer's head and the beginning of its body into one write, and one packet.

    ``late`` says whether the client is still sending when the connection is closed: then only our side of it is.
    """

    __slots__ = ("_closed", "_held", "_hold", "_late", "_transport")

    def __init__(self, transport: asyncio.Transport, late: Callable[[], bool]) -> None:
        self._transport = transport
        self._late = late
        self._closed = False
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
        if self._closed or not self._late():
            self._transport.close()
        else:
            self._transport.write_eof()
        self._closed = True

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Channel:
    """One request's end of its client's connection: what an exchange needs of it that ASGI does not have."""

    __slots__ = ("_application", "_flow", "_transport", "cycle", "on_disconnect")

    cycle: RequestResponseCycle
    """uvicorn's side of the same request; set before the application runs."""

    def __init__(self, application: Application, transport: _Joining, flow: FlowControl) -> None:
        self._application = application
        self._transport = transport
        self._flow = flow
        self.on_disconnect: Callable[[], None] | None = None
        """Called once when the client's connection ends before the answer does."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """The ASGI application of this one request."""
        return self._application(scope, receive, send, self)

    def hold_head(self) -> None:
        """What is written next goes out together with what is written after it."""
        self._transport.hold()

    @property
    def write_paused(self) -> bool:
        """Whether the client does not take what is written to it."""
        return self._flow.write_paused

    def push(self, data: bytes) -> None:
        """Write more of a body that has begun, at once. ASGI's own way takes a coroutine."""
        cycle = self.cycle
        if not cycle.disconnected and not cycle.response_complete:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if cycle.chunked_encoding else data)

    def disconnected(self) -> None:
        """The connection is gone; an answer that was not complete never will be."""
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if self.on_disconnect is not None:
                self.on_disconnect()


class ClientConnection(HttpToolsProtocol):
    """uvicorn's, which also calls back when a client leaves, joins heads and bodies, and has only so much patience.

    ASGI alone needs a waiting task for each request for the first, and cannot do the others.
    """

    _awaited: Literal["head", "body"] | None = "head"
    """What the client has begun to send and not ended; a new connection owes a head."""
    _since = 0.0
    """Loop time since when it is awaited, or at which the last of a body came."""
    _began = 0.0
    _head_bytes = 0
    _answered_at: float | None = None
    """Closed on our side while the client was still sending."""
    _early_since: float | None = None
    """Loop time at which a request was answered that the client had not sent to its end."""
    _stuck: tuple[int, float] | None = None
    """Bytes the client does not take, and since when."""

    def __init__(self, application: Application, config: uvicorn.Config, *state: Any) -> None:
        super().__init__(config, *state)
        self._application = application

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """asyncio's."""
        self._joining = _Joining(transport, self._late)
        self._unfinished: list[Channel] = []
        """Being answered, or waiting for that because they were sent ahead of the answer before them."""
        self._since = self.loop.time()
        super().connection_made(cast(asyncio.Transport, self._joining))

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes of requests; a head that is too long is refused."""
        if self._awaited == "body":
            self._since = self.loop.time()
        super().data_received(data)
        if self._awaited == "head":
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._joining.write(_TOO_LONG)
                self._joining.close()

    def on_message_begin(self) -> None:
        """httptools': the first bytes of a request are here."""
        super().on_message_begin()
        self._awaited, self._since, self._head_bytes = "head", self.loop.time(), 0

    def on_headers_complete(self) -> None:
        """httptools': a request begins, with a channel of its own."""
        channel = Channel(self._application, self._joining, self.flow)
        self.app = channel
        super().on_headers_complete()
        channel.cycle = self.cycle
        self._awaited, self._began = "body", self._since
        self._unfinished = [earlier for earlier in self._unfinished if not earlier.cycle.response_complete]
        self._unfinished.append(channel)

    def on_response_complete(self) -> None:
        """uvicorn's: an answer went out to its end."""
        super().on_response_complete()
        if self._awaited == "body" and self.cycle.response_complete:
            self._early_since = self.loop.time()

    def on_message_complete(self) -> None:
        """httptools': the last bytes of a request are here."""
        self._awaited = self._early_since = None
        super().on_message_complete()
        if self._answered_at is not None:
            self._joining.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: what is being answered is told that its client left."""
        super().connection_lost(exc)
        for channel in self._unfinished:
            channel.disconnected()
        self._unfinished.clear()

    def _late(self) -> bool:
        if self._awaited != "body" or self._answered_at is not None:
            return False
        self._answered_at = self.loop.time()
        self.flow.resume_reading()
        return True

    def look(self, now: float, head_s: float) -> None:
        """Hang up on a client that keeps us waiting."""
        if self._waits_too_long(now, head_s):
            self._joining.abort()

    def _waits_too_long(self, now: float, head_s: float) -> bool:
        for since in (self._answered_at, self._early_since):
            if since is not None:
                return now - since > LINGER_S
        if not self.flow.write_paused:
            self._stuck = None
        else:
            held = self._joining.get_write_buffer_size()
            if self._stuck is None or self._stuck[0] != held:
                self._stuck = held, now
            return now - self._stuck[1] > TAKES_NOTHING_S
        owed = [channel.cycle for channel in self._unfinished if not channel.cycle.response_complete]
        if self.flow.read_paused or any(cycle is not self.cycle for cycle in owed):
            return False  # it is we who do not read, or it is not yet this request's turn
        if self._awaited == "head":
            return not owed and now - self._since > head_s
        if self._awaited == "body":
            return now - self._since > BODY_S or now - self._began > WHOLE_BODY_S
        return False


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the service's matter."""
        yield


class HttpServer:
    """Serves an application until it is stopped; requests in flight then have ``drain_s`` to end."""

    def __init__(
        self,
        application: Application,
        listening: socket.socket,
        balance: ConnectionBalance,
        able: Callable[[], bool],
        keep_alive_s: int,
        drain_s: float,
        fail: Callable[[str], None],
    ) -> None:
        """``able``: whether requests can be answered at all; while not, connections are left to other workers."""
        self._application = application
        self._able = able
        self._fail = fail
        config = uvicorn.Config(
            cast(Any, application),
            interface="asgi3",
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
        self._balance = balance
        self._keep_alive_s = keep_alive_s
        self._task: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._acceptor: Acceptor | None = None

    async def start(self) -> None:
        """Begin to take connections. Raises RuntimeError where the server ended at once."""
        self._task = supervise(lambda: self._server.serve(sockets=[]), name="the HTTP server", fail=self._fail)
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended while it was starting")
            await asyncio.sleep(0.005)
        self._acceptor = Acceptor(self._listening, self._connection, self._balance, self._open_now, self._able)
        self._looking = supervise(self._look, name="the look at connections", fail=self._fail)

    def _open_now(self) -> int:
        return len(self._server.server_state.connections)

    def _connection(self) -> asyncio.Protocol:
        return ClientConnection(
            self._application, self._server.config, self._server.server_state, self._server.lifespan.state
        )

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOKED_AT_EVERY_S)
            now = loop.time()
            for connection in list(self._server.server_state.connections):
                cast(ClientConnection, connection).look(now, self._keep_alive_s)

    async def stop(self) -> None:
        """Take no more connections, and let requests in flight end for as long as they may."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking


def listen(host: str, port: int) -> socket.socket:
    """The open port clients come to. Raises PortTaken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PortTaken(f"port {host}:{port} cannot be used ({error.strerror}); set port to a free one") from None
    listening.setblocking(False)
    return listening
