"""One request of one client, on the client's side."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Protocol as Interface

from services.gateway.adapters.upstream import Abandoned
from services.gateway.core.errors import Protocol, body_of, protocol_of
from services.gateway.core.faults import Fault, body_too_large, encoding_not_taken
from services.gateway.core.http.addresses import Network, origin

from .server import Channel, Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
SSE = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
NO_CONTENT = 204
SERVED_BY = b"x-llmgw-model"
COMMENT = b": keep-alive\n\n"

MAX_WARNINGS = 16
WARNING_CHARACTERS = 300

_numbers = random.Random(random.SystemRandom().getrandbits(128))
"""Request ids must be unique, not secret: the system is asked for randomness once, not for each request."""


class Abortable(Interface):
    """What a request is waiting for."""

    def abort(self) -> None:
        """Give up: what waits raises Abandoned."""


class Exchange:
    """What was asked over HTTP, and the way to answer it. Exactly one of the answering methods is used.

    ``gone`` turns True when the client has left; what is awaited for it then, an answer or an engine, is given up at
    once.
    """

    __slots__ = (
        *(
            "_channel",
            "_receive",
            "_send",
            "answered",
            "attributes",
            "authorization",
            "body_bytes",
            "connection",
            "encoding",
        ),
        *("gone", "headers", "method", "path", "protocol", "request_id", "scope", "started", "started_at", "status"),
        *("delivered", "traceparent", "tracestate", "wrote_at"),
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, channel: Channel) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._channel = channel
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.protocol: Protocol = protocol_of(self.path)
        self.started = time.perf_counter()
        self.started_at = datetime.now(UTC)
        self.request_id = f"req-{_numbers.getrandbits(80):020x}"
        self.authorization: bytes | None = None
        self.traceparent: bytes | None = None
        self.tracestate: bytes | None = None
        self.encoding: bytes | None = None
        self.body_bytes = 0
        self.headers: Headers = [(b"x-request-id", self.request_id.encode())]
        """What goes with the answer whatever it is."""
        if self.protocol == "anthropic":
            self.headers.append((b"request-id", self.request_id.encode()))
        self.connection: Abortable | None = None
        self.attributes: dict[str, str | int] = {}
        """Of the request's span, as OpenTelemetry's GenAI conventions name them; never text."""
        self.gone = False
        self.answered = False
        """The head of the answer is out."""
        self.delivered = False
        """So is something of its body."""
        self.wrote_at = self.started
        """When something was last written, as ``time.perf_counter`` has it."""
        self.status = 0
        for name, value in scope["headers"]:
            if name == b"authorization":
                if value[:7].lower() == b"bearer ":
                    self.authorization = value[7:].strip()
            elif name == b"x-api-key":
                self.authorization = self.authorization or value.strip()
            elif name == b"content-length":
                self.body_bytes = int(value)
            elif name == b"content-encoding":
                self.encoding = value.lower()
            elif name == b"traceparent":
                self.traceparent = value
            elif name == b"tracestate":
                self.tracestate = value
        channel.on_disconnect = self._client_left

    def _client_left(self) -> None:
        self.gone = True
        if self.connection is not None:
            self.connection.abort()

    async def body(self, limit_bytes: int) -> bytes:
        """The whole body. Raises Fault over the limit, Abandoned when the client leaves."""
        if self.body_bytes > limit_bytes:
            raise body_too_large(limit_bytes)
        if self.encoding not in (None, b"identity"):
            raise encoding_not_taken((self.encoding or b"").decode("latin-1"))
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            return body
        parts = []
        size = 0
        while message["type"] == "http.request":
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit_bytes:
                raise body_too_large(limit_bytes)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await self._receive()
        raise Abandoned

    def origin(self, trusted_proxies: tuple[Network, ...]) -> str:
        """Where the request comes from, for what is counted by address."""
        client = self.scope.get("client")
        forwarded = [value for name, value in self.scope["headers"] if name == b"x-forwarded-for"]
        return origin(client[0] if client else "", forwarded, trusted_proxies)

    def header(self, name: bytes) -> bytes | None:
        """The first header of a name, which is in small letters."""
        return next((value for known, value in self.scope["headers"] if known == name), None)

    def forwarded(self, names: Iterable[bytes]) -> bytes:
        """Header lines of the client's that engines may see."""
        wanted = frozenset(names)
        return b"".join(b"%s: %s\r\n" % (name, value) for name, value in self.scope["headers"] if name in wanted)

    async def answer(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = (JSON,)) -> None:
        """A whole answer. Of a HEAD only its head goes out, and that at once: there is no body it could wait for."""
        length = [] if status == NO_CONTENT else [(b"content-length", b"%d" % len(body))]
        await self.begin(status, [*headers, *length])
        await self.write(body, False)

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head of an answer whose body is written in pieces."""
        self.answered = True
        self.status = status
        if not self.gone and self.method != "HEAD" and status != NO_CONTENT:
            self._channel.hold_head()
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.headers]})

    async def write(self, data: bytes, more: bool) -> None:
        """More of the body. Waits while the client does not read."""
        self.delivered = True
        self.wrote_at = time.perf_counter()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    @property
    def waits(self) -> bool:
        """Whether the client does not take what is written to it."""
        return self.gone or self._channel.write_paused

    def push(self, data: bytes) -> None:
        """More of a body that has begun, to a client that does not wait; there is more to come."""
        self.wrote_at = time.perf_counter()
        self._channel.push(data)

    async def comment(self) -> None:
        """A line in a stream that no client takes for an event, after the head where that is not out yet.

        Never waits, so it may be called between the other methods: to a client that does not read nothing is sent.
        """
        if self.waits:
            return
        self.wrote_at = time.perf_counter()
        if not self.answered:
            await self.begin(200, SSE)
        await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})

    async def refuse(self, fault: Fault) -> None:
        """An error, in the client's protocol."""
        headers: Headers = [JSON, *fault.headers]
        if fault.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(fault.retry_after_s))))
        await self.answer(fault.status, body_of(fault, self.protocol, self.request_id), headers)

    def served_by(self, model: str) -> None:
        """Tell the client that another model answers than the one it asked for; the last one told counts."""
        self.headers = [header for header in self.headers if header[0] != SERVED_BY]
        self.headers.append((SERVED_BY, model.encode()))

    def warn(self, warnings: Iterable[str]) -> None:
        """Tell the client what of its request had no effect."""
        for warning in list(warnings)[:MAX_WARNINGS]:
            # A field's name is in it, and that is the client's own: only what a header may hold goes in.
            text = "".join(c if " " <= c <= "~" else "?" for c in " ".join(warning.split())[:WARNING_CHARACTERS])
            self.headers.append((b"x-llmgw-warning", text.encode("ascii")))

    @property
    def elapsed_ms(self) -> float:
        """Since the request arrived."""
        return round((time.perf_counter() - self.started) * 1000, 3)
