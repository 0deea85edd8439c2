"""The HTTP client the gateway asks engines with.

One ``asyncio.Protocol`` a connection, httptools for the answer, connections kept for the next request. What
general clients do besides (redirects, cookies, decompression, header objects) is not wanted here, and costs more
than the gateway does in all. A request that is given up closes its connection at once: that is what makes an
engine stop generating.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

HIGH_WATER_BYTES = 256 * 1024
"""An engine faster than its client is not read any further than this."""
MAX_HEAD_BYTES = 64 * 1024
IDLE_S = 4.0
"""uvicorn, which most engines use, closes an idle connection after 5 s; ours must be gone before."""
MAX_IDLE = 256
JOIN_BYTES = 64 * 1024
"""A body up to this is sent in one write with its head."""


class UpstreamFailure(Exception):
    """The engine did not answer as it should: whose fault it is and whether another may be asked is in ``kind``.

    ``connect``: it was not reached; ``closed``: it closed the connection before the end; ``protocol``: what it
    sent is not HTTP or no JSON; ``odd``: it is, and cannot be passed on; ``deadline``: no head in time; ``stalled``:
    nothing for too long; ``stopping``: the gateway ends it because it stops itself.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


class Abandoned(Exception):
    """The request was given up on our side: its client left, or the gateway is stopping."""


_ABANDONED = "abandoned"


class Connection(asyncio.Protocol):
    """One connection to an engine, with at most one request on it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._head_bytes = 0
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._into: Callable[[bytes], bytes | None] | None = None
        self._poured: bytes | Exception | None = None
        self._failure: tuple[str, str] | None = None
        """Kind and detail. Raised as a new exception each time: one that is kept keeps all that its traceback holds."""
        self._framed = False
        self._keep = True
        self.status = 0
        self.content_type = b""
        self.retry_after = b""
        self.headed = False
        self.complete = False
        """The whole answer has arrived (not: has been read)."""
        self.used = False
        """Another request went over it before."""
        self.released = False
        self.idle_since = 0.0
        self.waiting_since: float | None = None
        """Loop time since which something is awaited from the engine; None while nothing is."""
        self.deadline: float | None = None
        """Loop time at which the answer must be there (or have begun: then set it to None)."""

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's: an answer that was not complete is one no more, unless its end is the connection's."""
        self._transport = None
        self._parser = None  # it holds this, and so would keep what was read until the collector comes
        self._pool.forget(self)
        if self.complete:
            return
        if self.headed and not self._framed and error is None:
            self.complete = True  # an answer whose end is the end of the connection
        elif self._failure is None:
            self._failure = "closed", str(error) if error else "the engine closed the connection"
        self._wake()

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes of the answer."""
        parser = self._parser
        if parser is None or self.complete:
            # Bytes nobody asked for: not to be trusted with another request.
            self._keep = False
            self.abort()
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("protocol", str(error))
            return
        if self._held_bytes > HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self._into is not None and self._pieces:
            try:
                self._poured = self._into(self._received())
            except Exception as error:
                self._poured = error
            if self._poured is None and not self.complete:
                self.waiting_since = self._loop.time()
                return
            self._into = None
        self._wake()

    # what httptools calls

    def on_message_begin(self) -> None:
        """A head begins. Raises ValueError where it is one of a second answer."""
        if self.complete:
            raise ValueError("a second answer to one request")
        # What a 1xx before it said is not of the answer.
        self._framed = False
        self.content_type = self.retry_after = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. Raises ValueError where the head is too long."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head of the answer is too long")
        name = name.lower()
        if name == b"content-type":
            self.content_type = value
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"retry-after":
            self.retry_after = value

    def on_headers_complete(self) -> None:
        """The head is here, or that of a 1xx before it."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            self.headed = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(body)
        self._held_bytes += len(body)

    def on_message_complete(self) -> None:
        """The end of the answer is here."""
        if not self.headed:
            return  # 100 Continue and the like
        assert self._parser is not None
        self.complete = True
        self._keep = self._framed and self._parser.should_keep_alive()
        if self.released:
            self._pool.take_back(self)

    # one request

    @property
    def usable(self) -> bool:
        """Whether it is open."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes) -> None:
        """Start a request. The connection must be idle."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces.clear()
        self._held_bytes = self._head_bytes = 0
        self._failure = None
        self.waiting_since = None
        self._framed = self.headed = self.complete = self.released = False
        self.status = 0
        self.content_type = self.retry_after = b""
        if len(body) <= JOIN_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    async def head(self) -> int:
        """Wait for the status line and headers; the status. Raises UpstreamFailure, Abandoned."""
        while not self.headed:
            self._raise_failure()
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """All of the body that is here, at least one byte; ``b""`` at its end. Raises UpstreamFailure, Abandoned."""
        while not self._pieces:
            if self.complete:
                return b""
            self._raise_failure()
            await self._wait()
        return self._received()

    async def pour(self, into: Callable[[bytes], bytes | None]) -> bytes | None:
        """Give all of the body that comes to ``into``, as it comes, until that gives something back; this, or None at
        the end of the body. Raises UpstreamFailure, Abandoned, and what ``into`` raises.

        No task is woken for what is poured: to wake one takes longer than to pass a token on.
        """
        while self._pieces:
            if (out := into(self._received())) is not None:
                return out
        self._into = into
        try:
            while True:
                if isinstance(self._poured, Exception):
                    raise self._poured
                if self._poured is not None:
                    return self._poured
                if self.complete:
                    return None
                self._raise_failure()
                await self._wait()
        finally:
            self._into = self._poured = None

    def _received(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._held_bytes = 0
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()
        return data

    async def read_all(self, limit_bytes: int) -> bytes:
        """The rest of the body. Raises UpstreamFailure (also when it is over the limit), Abandoned."""
        parts = []
        size = 0
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit_bytes:
                parts.clear()
                raise UpstreamFailure("odd", f"the answer is over {limit_bytes} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """The answer was read as far as it matters: keep the connection if it can be kept."""
        self.released = True
        self.waiting_since = None
        if self.complete:
            self._pool.take_back(self)
        else:
            self._pool.await_end(self)

    def abort(self) -> None:
        """Give up: close at once, which an engine sees as its client having left."""
        self._fail(_ABANDONED, "")

    def _fail(self, kind: str, detail: str) -> None:
        if self._failure is None and not self.complete:
            self._failure = kind, detail
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            kind, detail = self._failure
            raise Abandoned if kind == _ABANDONED else UpstreamFailure(kind, detail)

    def end(self) -> None:
        """Let the reader fail now: this gateway stops."""
        if not self.complete and self._failure is None:
            self._fail("stopping", "this gateway stops")

    def check(self, now: float, stall_s: float) -> None:
        """Let the reader fail when the deadline is over or, after the beginning, nothing came for ``stall_s``."""
        if self.complete or self._failure is not None:
            return
        if self.deadline is not None:
            if now > self.deadline:
                self._fail("deadline", "no answer in time")
        elif self.waiting_since is not None and now - self.waiting_since > stall_s:
            self._fail("stalled", f"nothing for {stall_s:g} s")

    @property
    def reusable(self) -> bool:
        """Whether another request may go over it."""
        return self._keep and self.complete and not self._pieces and not self._paused and self.usable

    def rest(self, now: float) -> None:
        """It is idle from now on, a loop time."""
        self._parser = None
        self.used = True
        self.idle_since = now
        self.waiting_since = None

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        if self.waiting_since is None:
            self.waiting_since = self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self.waiting_since = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Pool:
    """Connections to one engine."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        """``url`` is ``http://host:port`` and perhaps a path. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"an engine's URL must read http://host:port, not {url!r}")
        self.host = parts.hostname
        self.port = parts.port or 80
        self.authority = parts.netloc.rpartition("@")[2]
        self.path = parts.path.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[Connection] = deque()
        self._released: set[Connection] = set()
        self._closed = False

    def idle(self) -> Connection | None:
        """A connection that was used before, the freshest first; None when a new one must be opened."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self) -> Connection:
        """A new connection. Raises UpstreamFailure."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(lambda: Connection(self), self.host, self.port)
        except TimeoutError:
            raise UpstreamFailure("connect", f"no connection within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise UpstreamFailure("connect", str(error)) from None
        return connection

    def take_back(self, connection: Connection) -> None:
        """Keep a connection whose answer was read for another request, or close it."""
        self._released.discard(connection)
        if self._closed or not connection.reusable or len(self._idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.rest(asyncio.get_running_loop().time())
        self._idle.append(connection)

    def await_end(self, connection: Connection) -> None:
        """Everything that matters was read; the last bytes (the end of a chunked body) are about to come."""
        if self._closed:
            connection.abort()
        else:
            self._released.add(connection)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._released.discard(connection)

    def sweep(self, now: float) -> None:
        """Close what has been idle for long, and what was released before its answer ended and did not end since."""
        while self._idle and now - self._idle[0].idle_since > IDLE_S:
            self._idle.popleft().abort()
        for connection in list(self._released):
            connection.abort()

    def close(self) -> None:
        """Close what is idle now and the rest as it ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()
        for connection in list(self._released):
            connection.abort()
