"""A small HTTP client for the engines on this machine: one request a connection, with a deadline, no proxies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

import httptools
import msgspec

_MAX_BYTES = 4 * 1024 * 1024
"""No page the agent reads is longer; what is belongs to something else."""


class Unreachable(Exception):
    """No answer that could be read: refused, reset, too late or not HTTP."""


class Response(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    body: bytes


class _Reader:
    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False
        self.parser = httptools.HttpResponseParser(self)

    def on_body(self, part: bytes) -> None:
        self.body += part
        if len(self.body) > _MAX_BYTES:
            raise Unreachable(f"the answer is longer than {_MAX_BYTES} bytes")

    def on_message_complete(self) -> None:
        self.complete = self.parser.get_status_code() >= 200  # 1xx come before the answer


async def request(
    method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"", timeout_s: float
) -> Response:
    """Ask and read the whole answer. Raises Unreachable."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _request(method, url, headers or {}, body)
    except (OSError, TimeoutError, httptools.HttpParserError) as error:
        raise Unreachable(f"{url}: {error or type(error).__name__}") from None


async def _request(method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [
            f"{method} {target} HTTP/1.1",
            f"host: {parts.netloc}",
            "connection: close",
            "user-agent: llmgw-nodeagent",
        ]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        answer = _Reader()
        parser = answer.parser
        while not answer.complete:
            part = await reader.read(65536)
            if not part:
                # An answer without a length ends with its connection.
                if not answer.body and not _has_status(parser):
                    raise Unreachable(f"{url}: the connection was closed without an answer")
                break
            parser.feed_data(part)
        return Response(parser.get_status_code(), bytes(answer.body))
    finally:
        writer.close()


def _has_status(parser: httptools.HttpResponseParser) -> bool:
    return bool(parser.get_status_code())
