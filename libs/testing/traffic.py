"""Requests whose answers are checked to the last token, and steady traffic of them.

For tests that break things while requests run: the engine is ``sim``, whose answers are known, so that what a
client was sent can be compared with what the ledger says.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools


@dataclass
class Answer:
    """What one client saw of one request."""

    request_id: str = ""
    """As the gateway named it in ``x-request-id``."""
    status: int = 0
    """HTTP status; 0: no answer at all."""
    tokens: int = 0
    """Content events received."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finished: bool = False
    """The stream ended as it should: a finish reason, usage and ``[DONE]``."""
    error: str = ""
    body: bytes = b""
    """Of an answer that was not streamed."""
    started: float = 0.0
    """Monotonic seconds."""
    first_token: float | None = None
    ended: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it came whole and without an error, and had as many tokens as its usage says."""
        return self.status == 200 and self.finished and not self.error and self.tokens == self.completion_tokens


@dataclass
class _Parts:
    """Collects one response from the parser's callbacks."""

    answer: Answer
    buffer: bytes = b""
    body: bytes = b""
    done: bool = False
    finish_reason: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, chunk: bytes) -> None:
        if "text/event-stream" not in self.headers.get("content-type", ""):
            self.body += chunk
            return
        self.buffer += chunk
        *events, self.buffer = self.buffer.split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data: "):
                    self._data(line[6:])

    def _data(self, data: bytes) -> None:
        answer = self.answer
        if data == b"[DONE]":
            answer.finished = self.finish_reason and answer.completion_tokens is not None
            return
        event = json.loads(data)
        if "error" in event:
            answer.error = str(event["error"].get("message", event["error"]))
            return
        for choice in event["choices"]:
            if choice.get("delta", {}).get("content"):
                answer.tokens += 1
                answer.first_token = answer.first_token or time.monotonic()
            self.finish_reason = self.finish_reason or choice.get("finish_reason") is not None
        if event.get("usage"):
            answer.prompt_tokens = event["usage"]["prompt_tokens"]
            answer.completion_tokens = event["usage"]["completion_tokens"]

    def on_message_complete(self) -> None:
        self.done = True


async def ask(
    base_url: str,
    key: str,
    model: str,
    text: str,
    max_tokens: int,
    timeout_s: float = 60.0,
    *,
    leave_after: int | None = None,
) -> Answer:
    """One streamed chat request on a connection of its own; ``leave_after`` that many tokens the client goes away."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return await _exchange(f"{base_url}/chat/completions", key, body, timeout_s, leave_after)


async def ask_whole(base_url: str, key: str, model: str, text: str, max_tokens: int, timeout_s: float = 60.0) -> Answer:
    """One chat request, answered at once."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return _read_whole(await _exchange(f"{base_url}/chat/completions", key, body, timeout_s), "prompt", "completion")


async def ask_messages(
    base_url: str, key: str, model: str, text: str, max_tokens: int, timeout_s: float = 60.0
) -> Answer:
    """One request in Anthropic's protocol, answered at once."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return _read_whole(await _exchange(f"{base_url}/messages", key, body, timeout_s), "input", "output")


def _read_whole(answer: Answer, asked: str, told: str) -> Answer:
    """What an answer that is not streamed says of its tokens."""
    if answer.status == 200 and answer.body and not answer.error:
        usage = json.loads(answer.body)["usage"]
        answer.prompt_tokens, answer.completion_tokens = usage[f"{asked}_tokens"], usage[f"{told}_tokens"]
        answer.tokens, answer.finished = answer.completion_tokens, True
    return answer


async def _exchange(
    address: str, key: str, content: dict[str, object], timeout_s: float, leave_after: int | None = None
) -> Answer:
    answer = Answer(started=time.monotonic())
    url = urlsplit(address)
    body = json.dumps(content).encode()
    head = (
        f"POST {url.path} HTTP/1.1\r\nhost: {url.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    parts = _Parts(answer)
    parser = httptools.HttpResponseParser(parts)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(head.encode() + body)
            while not parts.done:
                chunk = await reader.read(65536)
                if not chunk:
                    break
                parser.feed_data(chunk)
                if leave_after is not None and answer.tokens >= leave_after:
                    answer.error = "left"
                    writer.transport.abort()
                    break
    except (OSError, TimeoutError, httptools.HttpParserError) as error:
        answer.error = answer.error or f"{type(error).__name__}: {error}"
    finally:
        if writer is not None:
            writer.close()
    answer.status = parser.get_status_code() if parts.headers else 0
    answer.request_id = parts.headers.get("x-request-id", "")
    if not parts.done and not answer.error:
        answer.error = "the connection was closed before the answer ended"
    if parts.body and answer.status == 200:
        answer.body = parts.body
    elif parts.body and not answer.error:
        answer.error = parts.body.decode(errors="replace")[:500]
    answer.ended = time.monotonic()
    return answer


class Traffic:
    """``rate`` requests a second, evenly, until stopped; open loop, so a slow answer holds nothing up."""

    def __init__(self, base_url: str, key: str, model: str, rate: float = 20.0, max_tokens: int = 40) -> None:
        self.base_url, self.key, self.model = base_url, key, model
        self.rate, self.max_tokens = rate, max_tokens
        self.answers: list[Answer] = []
        self._running: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._count = 0

    async def __aenter__(self) -> Traffic:
        self._task = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def failures(self) -> list[Answer]:
        """Answers that were not ok."""
        return [answer for answer in self.answers if not answer.ok]

    async def stop(self) -> list[Answer]:
        """Send no more, wait for what runs, return everything."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await asyncio.gather(*self._running)
        return self.answers

    async def _drive(self) -> None:
        next_at = time.monotonic()
        while True:
            self._count += 1
            task = asyncio.create_task(self._one(self._count))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            next_at += 1 / self.rate
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))

    async def _one(self, number: int) -> None:
        text = f"request {number} " + "word " * (number % 17)
        self.answers.append(await ask(self.base_url, self.key, self.model, text, self.max_tokens))
