"""Endpoints that keep every byte they are sent, and answer as engines do, with headers of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, Literal, NamedTuple

from libs.events.views import Endpoint

Fault = Literal["none", "500", "401", "429", "404", "closed", "error event", "nothing but an end"]
FAULTS: tuple[Fault, ...] = ("none", "500", "401", "429", "404", "closed", "error event", "nothing but an end")
IN_STREAMS: tuple[Fault, ...] = ("error event", "nothing but an end")
"""These come inside a 200, so only a stream has them."""

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CHAT = {"index": 0, "message": {"role": "assistant", "content": "a b"}, "finish_reason": "stop"}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"id": "c", "object": "chat.completion", "choices": [CHAT], "usage": USAGE},
    "/v1/completions": {"id": "c", "choices": [{"index": 0, "text": "a b", "finish_reason": "stop"}], "usage": USAGE},
    "/v1/embeddings": {"data": [{"index": 0, "embedding": [0.6, 0.8]}] * 2, "usage": USAGE},
    "/v1/rerank": {"results": [{"index": 0, "relevance_score": 1.0}], "usage": USAGE},
    "/tokenize": {"count": 3, "tokens": [1, 2, 3]},
    "/detokenize": {"prompt": "a b"},
}
CHUNKS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": None}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": " b"}, "finish_reason": "stop"}]},
        {"id": "c", "choices": [], "usage": USAGE},
    ],
    "/v1/completions": [
        {"id": "c", "choices": [{"index": 0, "text": "a", "finish_reason": None}]},
        {"id": "c", "choices": [{"index": 0, "text": " b", "finish_reason": "stop"}]},
        {"id": "c", "choices": [], "usage": USAGE},
    ],
}
OWN_HEADERS = {
    "server": "engine-server",
    "set-cookie": "engine-cookie=1",
    "authorization": "engine-authorization",
    "x-request-id": "engine-request-id",
    "request-id": "engine-request-id",
    "x-ratelimit-remaining-requests": "engine-ratelimit",
    "openai-organization": "engine-organization",
    "access-control-allow-origin": "engine-origin",
    "alt-svc": "engine-alt-svc",
    "via": "engine-via",
    "cache-control": "engine-cache-control",
    "x-accel-buffering": "engine-buffering",
    "vary": "engine-vary",
    "etag": "engine-etag",
}
"""Of an engine's answer; every value begins alike."""


class Heard(NamedTuple):
    """One request as an endpoint saw it; names of headers are in lower case."""

    endpoint: int
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


class Recorder:
    """Two endpoints. The first attempt at a request meets ``fault``, wherever it arrives; the second is answered."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.fault: Fault = "none"
        self.ports: list[int] = []
        self._begun: set[str | None] = set()

    async def start(self, stack: AsyncExitStack) -> None:
        for endpoint in (0, 1):
            server = await asyncio.start_server(
                lambda reader, writer, endpoint=endpoint: self._serve(endpoint, reader, writer),  # type: ignore[misc]
                "127.0.0.1",
                0,
                limit=2**26,
            )
            stack.callback(server.close)
            self.ports.append(server.sockets[0].getsockname()[1])

    def endpoints(self, name: str) -> tuple[Endpoint, ...]:
        """For a route: other ``name``, other breakers."""
        return tuple(
            Endpoint(replica_id=f"{name}-{n}", url=f"http://127.0.0.1:{port}", machine_id="here", served_name="sim")
            for n, port in enumerate(self.ports)
        )

    async def _serve(self, endpoint: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = [(name.lower(), value.strip()) for name, _, value in (h.partition(":") for h in head[1:-2])]
                body = await reader.readexactly(int(dict(headers)["content-length"]))
                heard = Heard(endpoint, head[0].split(" ")[1], headers, body)
                self.heard.append(heard)
                out = self._answer(heard)
                if not out:
                    return
                writer.write(out)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, heard: Heard) -> bytes:
        again = heard.header("x-request-id") in self._begun
        self._begun.add(heard.header("x-request-id"))
        fault = "none" if again else self.fault
        if fault == "closed":
            return b""
        if fault.isdigit():
            return _response(int(fault), {"error": {"message": "as it was told"}})
        if not json.loads(heard.body).get("stream"):
            return _response(200, ANSWERS[heard.path])
        events: list[object] = list(CHUNKS[heard.path])
        if fault == "error event":
            events = [{"error": {"message": "as it was told", "code": 500}}]
        elif fault == "nothing but an end":
            return _head(200, "text/event-stream") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
        body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
        return _head(200, "text/event-stream") + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
            len(body),
            body,
        )


def _head(status: int, kind: str) -> bytes:
    lines: Iterator[str] = (f"{name}: {value}\r\n" for name, value in OWN_HEADERS.items())
    return f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\n{''.join(lines)}".encode()


def _response(status: int, value: object) -> bytes:
    body = json.dumps(value).encode()
    return _head(status, "application/json") + b"content-length: %d\r\n\r\n%b" % (len(body), body)
