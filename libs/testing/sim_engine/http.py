"""The HTTP side: one connection, its requests in order, and what each path answers."""

from __future__ import annotations

import asyncio
import hmac
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any, cast

import httptools
import msgspec

from .behaviour import HEADER_PREFIX, Behaviour, BehaviourWanted, changed
from .engine import PROMPT_REMEMBERED_CHARS, Engine, Generation, Record
from .protocol import CREATED, SSE_HEAD, Asked, error, response, shape_of, token_ids, words_of
from .vectors import MAX_DIMENSIONS, embedding, ranking

BODY_LIMIT_BYTES = 64 * 1024 * 1024
COMPLETIONS = {b"/v1/chat/completions": True, b"/v1/completions": False}


@dataclass
class Site:
    """What all connections share. ``loaded`` false: everything but /metrics answers 503."""

    engine: Engine
    model: str
    key: str | None
    context_length: int
    version: str
    loaded: bool = True
    loras: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.bearer = f"Bearer {self.key}".encode() if self.key else None
        self.asked = msgspec.json.Decoder(Asked)
        self.numbers = itertools.count(1)


@dataclass(slots=True)
class Request:
    method: bytes
    path: bytes
    body: bytes
    bearer: bytes
    request_id: str
    sim: dict[str, Any] | None
    keep_alive: bool
    oversized: bool


class Connection(asyncio.Protocol):
    """Parses requests and answers them one after another. Also the sink its answers are written to.

    ``on_…`` are called by httptools (``HttpRequestParser``), the others by the event loop.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._generation: Generation | None = None
        self.full = False
        """The client reads slower than its answer is made; the answer waits for it."""
        self.on_message_begin()

    # what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._queue.clear()
        if self._generation is not None:
            self._site.engine.abort(self._generation)
            self._generation = None

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a mistake of ours, not of the client: the loop prints it and closes the connection
        except httptools.HttpParserError:
            self.write(response(400, error(400, "this is not HTTP/1.1")))
            self.close()

    # what the parser tells

    def on_message_begin(self) -> None:
        """A request begins: nothing is known of it."""
        self._url = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._bearer = b""
        self._request_id = ""
        self._sim: dict[str, Any] | None = None

    def on_url(self, url: bytes) -> None:
        """A piece of the path and what follows it."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Those that count: the key, the request's id, and what is wished of the engine (``x-sim-…``)."""
        size = len(name)
        if size == 13 and name.lower() == b"authorization":
            self._bearer = value
        elif size == 12 and name.lower() == b"x-request-id":
            self._request_id = value.decode("latin-1")
        elif name[:6].lower() == HEADER_PREFIX:
            field = name[6:].decode("latin-1").lower().replace("-", "_")
            self._sim = {**(self._sim or {}), field: value.decode("latin-1")}

    def on_body(self, body: bytes) -> None:
        """A piece of the body. What is over the limit is read and not kept."""
        self._body_bytes += len(body)
        if self._body_bytes <= BODY_LIMIT_BYTES:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is here: answered now, or after those before it on this connection."""
        request = Request(
            method=self._parser.get_method(),
            path=self._url.split(b"?", 1)[0],
            body=b"".join(self._body),
            bearer=self._bearer,
            request_id=self._request_id,
            sim=self._sim,
            keep_alive=self._parser.should_keep_alive(),
            oversized=self._body_bytes > BODY_LIMIT_BYTES,
        )
        if self._current is not None:
            self._queue.append(request)
        else:
            self._handle(request)

    # the sink of an answer

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        self._generation = None
        if self._transport is not None:
            self._transport.close()

    def answered(self) -> None:
        self._generation = None
        finished, self._current = self._current, None
        if finished is not None and not finished.keep_alive:
            self.close()
        elif self._queue:
            self._handle(self._queue.popleft())

    # requests

    def _handle(self, request: Request) -> None:
        self._current = request
        site = self._site
        if request.oversized:
            self._reply(413, error(413, f"the body is larger than {BODY_LIMIT_BYTES} bytes"))
        elif not site.loaded and request.path != b"/metrics":
            self._reply(503, error(503, "the model is loading"))
        elif not self._may(request):
            self._reply(401, error(401, "the engine's key is missing or wrong"))
        elif request.path in COMPLETIONS:
            self._complete(request, COMPLETIONS[request.path])
        else:
            self._other(request)

    def _may(self, request: Request) -> bool:
        """As vLLM: /health and /metrics are open, /v1 is not."""
        if self._site.bearer is None or not (
            request.path.startswith(b"/v1/") or request.path in (b"/tokenize", b"/detokenize")
        ):
            return True
        return hmac.compare_digest(request.bearer, self._site.bearer)

    def _reply(self, status: int, body: bytes, kind: bytes = b"application/json", extra: bytes = b"") -> None:
        self.write(response(status, body, kind, extra))
        self.answered()

    def _other(self, request: Request) -> None:
        site = self._site
        match request.method, request.path:
            case b"GET", b"/health":
                self._reply(200, b"", b"text/plain")
            case b"GET", b"/v1/models":
                card = {"id": site.model, "object": "model", "created": CREATED, "owned_by": "sim"}
                card |= {"root": site.model, "parent": None, "max_model_len": site.context_length}
                loras = [card | {"id": name, "root": name, "parent": site.model} for name in site.loras]
                self._reply(200, msgspec.json.encode({"object": "list", "data": [card, *loras]}))
            case b"GET", b"/metrics":
                self._reply(200, site.engine.metrics(site.model), b"text/plain; version=0.0.4")
            case b"GET", b"/version":
                self._reply(200, msgspec.json.encode({"version": site.version}))
            case b"POST", b"/tokenize" | b"/detokenize":
                self._tokenize(request)
            case b"POST", b"/v1/embeddings" | b"/v1/rerank":
                self._read(request)
            case b"GET", b"/sim/requests":
                self._reply(200, msgspec.json.encode({"requests": list(site.engine.requests)}))
            case b"POST", b"/sim/behaviour":
                self._behave(request)
            case _:
                self._reply(404, error(404, f"no {request.method.decode()} {request.path.decode('latin-1')} here"))

    def _decode(self, request: Request) -> Asked | None:
        """The body, or None after an error was answered."""
        try:
            asked = self._site.asked.decode(request.body)
        except msgspec.DecodeError as problem:
            self._reply(400, error(400, str(problem)))
            return None
        if asked.model is not None and asked.model not in (self._site.model, *self._site.loras):
            self._reply(404, error(404, f"The model `{asked.model}` does not exist.", "model"))
            return None
        return asked

    def _tokenize(self, request: Request) -> None:
        asked = self._decode(request)
        if asked is None:
            return
        if asked.tokens is not None:
            self._reply(200, msgspec.json.encode({"prompt": words_of(asked.tokens)}))
            return
        tokens = token_ids(asked.text())
        answer = {"count": len(tokens), "max_model_len": self._site.context_length, "tokens": tokens}
        self._reply(200, msgspec.json.encode(answer))

    def _read(self, request: Request) -> None:
        """Embeddings and rankings: numbers at once. As several engines do, it knows no base64."""
        asked = self._decode(request)
        if asked is None:
            return
        engine = self._site.engine
        texts = [asked.input] if isinstance(asked.input, str) else asked.input or []
        behaviour = engine.next_behaviour()
        if request.path == b"/v1/rerank":
            texts = [asked.query or "", *(asked.documents or ())]
        record = engine.read(request.request_id or f"sim-{next(self._site.numbers)}", texts, behaviour)
        if behaviour.fail_status:
            self._reply(
                behaviour.fail_status, error(behaviour.fail_status, "the simulated engine failed as it was told")
            )
        elif not texts or asked.encoding_format not in (None, "float"):
            self._reply(400, error(400, "send texts, and ask for numbers (encoding_format float)", "encoding_format"))
        elif asked.dimensions is not None and not 0 < asked.dimensions <= MAX_DIMENSIONS:
            wrong = f"dimensions must be from 1 to {MAX_DIMENSIONS}, got {asked.dimensions}"
            self._reply(400, error(400, wrong, "dimensions"))
        else:
            usage = {"prompt_tokens": record.prompt_tokens, "total_tokens": record.prompt_tokens}
            answer: dict[str, Any] = {"id": record.id, "object": "list", "model": self._site.model, "usage": usage}
            if request.path == b"/v1/rerank":
                answer["results"] = ranking(texts[0], texts[1:])[: asked.top_n]
            else:
                vectors = [embedding(text, asked.dimensions) for text in texts]
                answer["data"] = [
                    {"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)
                ]
            self._reply(200, msgspec.json.encode(answer))

    def _behave(self, request: Request) -> None:
        try:
            wanted = msgspec.json.decode(request.body, type=BehaviourWanted)
            self._site.engine.behave(changed(self._site.engine.behaviour, wanted.behaviour), wanted.times)
        except msgspec.ValidationError as problem:
            self._reply(400, error(400, str(problem)))
        else:
            self._reply(200, b"{}")

    def _complete(self, request: Request, chat: bool) -> None:
        if request.method != b"POST":
            self._reply(405, error(405, "completions are asked for by POST"))
            return
        asked = self._decode(request)
        if asked is None:
            return
        site, engine = self._site, self._site.engine
        behaviour = engine.next_behaviour()
        if request.sim or asked.sim:
            try:
                behaviour = self._own_behaviour(behaviour, request, asked)
            except msgspec.ValidationError as problem:
                self._reply(400, error(400, str(problem), "sim"))
                return
        text = asked.text()
        prompt_tokens = max(1, len(text.split()))
        request_id = request.request_id or f"sim-{next(site.numbers)}"
        record = Record(id=request_id, prompt_tokens=prompt_tokens, prompt=text[:PROMPT_REMEMBERED_CHARS])
        engine.requests.append(record)
        if behaviour.fail_status:
            record.state = "failed"
            extra = b"retry-after: %d\r\n" % behaviour.retry_after_s if behaviour.retry_after_s is not None else b""
            problem_body = error(behaviour.fail_status, "the simulated engine failed as it was told to")
            self._reply(behaviour.fail_status, problem_body, extra=extra)
            return
        refusal, field = self._refusal(asked, chat, prompt_tokens)
        if refusal:
            record.state = "failed"
            self._reply(400, error(400, refusal, field))
            return
        head = SSE_HEAD % request_id.encode() if asked.stream else b""
        shape = shape_of(chat, asked.model or site.model)
        self._generation = Generation(self, shape, asked, behaviour, record, head)
        engine.submit(self._generation)

    def _refusal(self, asked: Asked, chat: bool, prompt_tokens: int) -> tuple[str, str]:
        """What is wrong with a request and the field it is in; two empty texts when nothing is."""
        if (asked.messages if chat else asked.prompt) in (None, []):
            field = "messages" if chat else "prompt"
            return f"{field} is required and must not be empty", field
        limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        if limit is not None and limit < 1:
            return f"max_tokens must be at least 1, got {limit}.", "max_tokens"
        if asked.n not in (None, 1):
            return "this engine generates one answer: n must be 1", "n"
        if prompt_tokens + (limit or 1) > (window := self._site.context_length):
            most = max(0, window - (limit or 0))
            # As vLLM, which counts a prompt until it is too long and no further.
            return (
                f"You passed {min(prompt_tokens, most + 1)} input tokens and requested {limit or 0} output tokens. "
                f"However, the model's context length is only {window} tokens, resulting in a maximum input length of "
                f"{most} tokens. Please reduce the length of the input prompt."
            ), "input_tokens"
        return "", ""

    def _own_behaviour(self, behaviour: Behaviour, request: Request, asked: Asked) -> Behaviour:
        if request.sim:
            behaviour = changed(behaviour, request.sim, strict=False)
        return changed(behaviour, asked.sim or {})
