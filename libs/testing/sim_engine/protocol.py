"""What goes in and out: OpenAI's and vLLM's requests, and answers as bytes, prebuilt as far as they repeat."""

from __future__ import annotations

import time
import zlib
from typing import Any

import msgspec

CREATED = int(time.time())


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Part(msgspec.Struct):
    type: str = "text"
    text: str = ""


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None


class Asked(msgspec.Struct):
    """A chat or text completion request; what the simulation does not need is skipped."""

    model: str | None = None
    messages: list[Message] | None = None
    prompt: str | list[str | int] | None = None
    stream: bool = False
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    input: str | list[str] | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    query: str | None = None
    documents: list[str] | None = None
    top_n: int | None = None
    tokens: list[int] | None = None
    sim: dict[str, Any] | None = None

    def text(self) -> str:
        """All text of the prompt, messages separated by newlines."""
        if self.messages is not None:
            return "\n".join(map(content_of, self.messages))
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(str(part) for part in self.prompt or ())

    def last(self) -> str:
        """The text an echo repeats."""
        return content_of(self.messages[-1]) if self.messages else self.text()


def content_of(message: Message) -> str:
    """A message's text; of several parts, with spaces between them."""
    if isinstance(message.content, str):
        return message.content
    return " ".join(part.text for part in message.content or ())


_words: dict[int, str] = {}


def token_ids(text: str) -> list[int]:
    """One token a word; the same word is always the same token."""
    ids = {word: zlib.crc32(word.encode()) % 100_000 for word in text.split()}
    _words.update((token, word) for word, token in ids.items())
    return [ids[word] for word in text.split()]


def words_of(tokens: list[int]) -> str:
    """The text of tokens this process gave out."""
    return " ".join(_words.get(token, "?") for token in tokens)


def chunk(payload: bytes) -> bytes:
    """A chunk of an HTTP/1.1 body (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


DONE = chunk(b"data: [DONE]\n\n")
END = b"0\r\n\r\n"
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-request-id: %b\r\ntransfer-encoding: chunked\r\n\r\n"
)
REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


def response(status: int, body: bytes, kind: bytes = b"application/json", extra: bytes = b"") -> bytes:
    """A whole HTTP response; ``extra`` is further header lines."""
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b\r\n%b" % (
        *(status, REASONS.get(status, b"Status"), kind, len(body), extra, body),
    )


def error(status: int, message: str, param: str | None = None) -> bytes:
    """vLLM's error body."""
    kind = {400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError"}.get(status, "InternalServerError")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


class Shape:
    """The parts of an answer's bytes that are the same for all answers of one kind and model."""

    def __init__(self, chat: bool, model: str) -> None:
        name = msgspec.json.encode(model)
        self.id_prefix = b"chatcmpl-" if chat else b"cmpl-"
        event = b"chat.completion.chunk" if chat else b"text_completion"
        self.middle = b'","object":"%b","created":%d,"model":%b,"choices":[' % (event, CREATED, name)
        whole = b"chat.completion" if chat else b"text_completion"
        self.whole_middle = b'","object":"%b","created":%d,"model":%b,"choices":[{"index":0,' % (whole, CREATED, name)
        self.role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        if chat:
            self.delta = b'{"index":0,"delta":'
            self.before, self.after = self.delta + b'{"content":"', b'"},"logprobs":null,"finish_reason":'
            self.whole_before, self.whole_after = b'"message":{"role":"assistant","content":"', b'"}'
        else:
            self.role = self.delta = b""
            self.before, self.after = b'{"index":0,"text":"', b'","logprobs":null,"finish_reason":'
            self.whole_before, self.whole_after = b'"text":"', b'"'


_shapes: dict[tuple[bool, str], Shape] = {}


def shape_of(chat: bool, model: str) -> Shape:
    """The parts of a kind and model, made once."""
    shape = _shapes.get((chat, model))
    if shape is None:
        shape = _shapes[chat, model] = Shape(chat, model)
    return shape
