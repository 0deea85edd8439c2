"""An engine that answers what it is told to, byte for byte."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from libs.events.views import Endpoint

GOOD = {
    "id": "c",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


def whole(body: bytes, status: int = 200, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def saying(content: str, **fields: Any) -> bytes:
    """An answer that is good but for ``content``, which is JSON as it stands."""
    return whole(json.dumps(GOOD | fields).encode().replace(b'"fine"', content.encode()))


def stream(*events: bytes) -> bytes:
    return whole(b"".join(b"data: %b\n\n" % event for event in events), kind="text/event-stream")


class OddEngine:
    """Answers every request with ``answer``; one whose body has the word ``well`` in it gets a good one."""

    def __init__(self) -> None:
        self.answer = b""
        self.asked = 0
        self.port = 0

    async def start(self, stack: AsyncExitStack) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        stack.callback(server.close)
        self.port = server.sockets[0].getsockname()[1]

    @property
    def endpoint(self) -> Endpoint:
        url = f"http://127.0.0.1:{self.port}"
        return Endpoint(replica_id=f"r-{self.port}", url=url, machine_id="here", served_name="sim", parallel=8)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                body = await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
                self.asked += 1
                writer.write(saying('"fine"') if b"well" in body else self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
