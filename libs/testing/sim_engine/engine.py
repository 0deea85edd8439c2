"""Generation without a model: a queue, slots, and one step clock that gives each running answer a token a step."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Protocol

import msgspec

from .behaviour import Behaviour
from .protocol import DONE, END, Asked, Shape, chunk, error, response
from .script import is_scripted, script_of

ANSWER_TOKENS = 64
"""When a request names no maximum."""
REMEMBERED = 10_000
PROMPT_REMEMBERED_CHARS = 2_000
DIED = 70


class Record(msgspec.Struct, omit_defaults=True):
    """What ``/sim/requests`` tells about one request."""

    id: str
    prompt_tokens: int
    prompt: str
    generated: int = 0
    """Content tokens generated; a client that left gets no more counted."""
    state: str = "waiting"
    """waiting, running, done, failed, or aborted (the client left)."""


class Sink(Protocol):
    """Where an answer's bytes go: the connection."""

    full: bool

    def write(self, data: bytes) -> None:
        """Send bytes of the answer."""

    def close(self) -> None:
        """Close the connection, whether the answer is complete or not."""

    def answered(self) -> None:
        """The answer is complete; the connection may take the next request."""


class Generation:
    """One answer being generated."""

    __slots__ = (
        *("after", "asked", "before", "behaviour", "continuous", "event", "finish", "generated", "head", "held"),
        *("id", "prompt_tokens", "record", "script", "shape", "sink", "total", "usage", "words"),
    )

    def __init__(
        self, sink: Sink, shape: Shape, asked: Asked, behaviour: Behaviour, record: Record, head: bytes
    ) -> None:
        self.sink, self.shape, self.asked, self.behaviour, self.record = sink, shape, asked, behaviour, record
        self.head = head
        self.prompt_tokens = record.prompt_tokens
        self.generated = 0
        limit = asked.max_completion_tokens or asked.max_tokens
        self.words = [w + " " for w in asked.last().split()] if behaviour.echo else None
        self.total = limit or ANSWER_TOKENS
        self.finish = b'"length"' if limit else b'"stop"'
        if self.words is not None and (limit is None or len(self.words) <= limit):
            self.total, self.finish = max(1, len(self.words)), b'"stop"'
        self.script = None
        if shape.delta and is_scripted(asked, behaviour):
            self.script = script_of(asked, behaviour, record.id, self.words or [f"tok{n} " for n in range(self.total)])
        if self.script is not None:
            self.total, self.finish = len(self.script.deltas), self.script.finish
            if limit is not None and limit < self.total:
                self.total, self.finish = limit, b'"length"'
        options = asked.stream_options
        self.usage = options is not None and options.include_usage
        self.continuous = self.usage and options is not None and options.continuous_usage_stats
        self.event = b'data: {"id":"' + shape.id_prefix + record.id.encode() + shape.middle
        self.before = self.event + shape.before
        self.after = shape.after
        self.held: list[bytes] = []

    def usage_bytes(self) -> bytes:
        """The value of ``usage`` so far, as JSON."""
        prompt, completion = self.prompt_tokens, self.generated
        details = b""
        if self.behaviour.cached_tokens:
            details += b',"prompt_tokens_details":{"cached_tokens":%d}' % self.behaviour.cached_tokens
        thoughts = self.behaviour.reasoning_tokens or (self.script.thoughts if self.script is not None else 0)
        if thoughts:
            details += b',"completion_tokens_details":{"reasoning_tokens":%d}' % min(thoughts, completion)
        return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
            *(prompt, prompt + completion, completion, details),
        )

    def word(self) -> bytes:
        """The next token's text, as the inside of a JSON string."""
        if self.words is None:
            return b"tok%d " % self.generated
        word = self.words[self.generated] if self.generated < len(self.words) else ""
        return msgspec.json.encode(word)[1:-1]

    def opening(self) -> bytes:
        """Headers (unless they went out while it waited) and the role chunk."""
        head, self.head = self.head, b""
        if self.shape.role:
            head += chunk(self.event + self.shape.role + b"}\n\n")
        return head

    def content(self) -> bytes:
        """The next content chunk; the last one names the finish reason."""
        word = b"" if self.script is not None else self.word()
        self.generated += 1
        finish = self.finish if self.generated >= self.total else b"null"
        usage = b',"usage":' + self.usage_bytes() if self.continuous else b""
        if self.script is not None:
            delta = msgspec.json.encode(self.script.deltas[self.generated - 1])
            middle = b',"logprobs":null,"finish_reason":'
            return chunk(b"%b%b%b%b%b}]%b}\n\n" % (self.event, self.shape.delta, delta, middle, finish, usage))
        return chunk(b"%b%b%b%b}]%b}\n\n" % (self.before, word, self.after, finish, usage))

    def ending(self) -> bytes:
        """Usage, if it is asked for, ``[DONE]`` and the last chunk of the body."""
        usage = chunk(self.event + b'],"usage":' + self.usage_bytes() + b"}\n\n") if self.usage else b""
        return usage + DONE + END

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        shape = self.shape
        start = b'{"id":"' + shape.id_prefix + self.record.id.encode() + shape.whole_middle
        if self.script is not None:
            text = b'"message":' + msgspec.json.encode(self.script.message(self.generated))
        else:
            text = shape.whole_before + b"".join(self.held) + shape.whole_after
        return b'%b%b,"logprobs":null,"finish_reason":%b}],"usage":%b}' % (
            *(start, text, self.finish, self.usage_bytes()),
        )


class StepClock:
    """Gives every answer of one pace a token a step, as an engine that batches does.

    A late step is not made up: under pressure answers get slower, tokens are never joined.
    """

    def __init__(self, engine: Engine, tok_s: float) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._period_s = 1.0 / tok_s
        self._active: list[Generation] = []
        self._running = False
        self._next = 0.0

    def add(self, generation: Generation) -> None:
        """Give an answer a token a step from the next step on, until it has no more to come."""
        self._active.append(generation)
        if not self._running:
            self._running = True
            self._next = self._loop.time() + self._period_s
            self._loop.call_at(self._next, self._tick)

    def _tick(self) -> None:
        step = self._engine.step
        self._active = [generation for generation in self._active if step(generation)]
        if not self._active:
            self._running = False
            return
        self._next = max(self._next + self._period_s, self._loop.time())
        self._loop.call_at(self._next, self._tick)


class Engine:
    """The queue and the slots. ``parallel`` answers run at once, the rest wait in order."""

    def __init__(self, behaviour: Behaviour, parallel: int, kv_tokens: int) -> None:
        self.behaviour = self._usual = behaviour
        self._times: int | None = None
        self.parallel = parallel
        self._kv_tokens = kv_tokens
        self.running: set[Generation] = set()
        self.waiting: deque[Generation] = deque()
        self._clocks: dict[float, StepClock] = {}
        self.requests: deque[Record] = deque(maxlen=REMEMBERED)
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0}

    def behave(self, behaviour: Behaviour, times: int | None) -> None:
        """Answer the next ``times`` requests (None: all) like that."""
        self.behaviour, self._times = behaviour, times

    def next_behaviour(self) -> Behaviour:
        """How the next request is answered; each call counts as one request."""
        behaviour = self.behaviour
        if self._times is not None:
            self._times -= 1
            if self._times <= 0:
                self.behaviour, self._times = self._usual, None
        return behaviour

    @property
    def kv_used(self) -> float:
        """Share of the KV cache that running answers take, 0 to 1."""
        held = sum(generation.prompt_tokens + generation.generated for generation in self.running)
        return min(1.0, held / self._kv_tokens)

    def read(self, request_id: str, texts: list[str], behaviour: Behaviour) -> Record:
        """Texts that are read and not answered with words."""
        text = "\n".join(texts)
        record = Record(id=request_id, prompt_tokens=len(text.split()), prompt=text[:PROMPT_REMEMBERED_CHARS])
        record.state = "failed" if behaviour.fail_status else "done"
        self.requests.append(record)
        self.prompt_tokens_total += record.prompt_tokens
        return record

    def submit(self, generation: Generation) -> None:
        """Begin an answer, or have it wait until a slot is free."""
        if len(self.running) < self.parallel:
            self._start(generation)
            return
        self.waiting.append(generation)
        if generation.asked.stream:
            # As vLLM: the headers go out while the request still waits.
            head, generation.head = generation.head, b""
            generation.sink.write(head)

    def _start(self, generation: Generation) -> None:
        self.running.add(generation)
        generation.record.state = "running"
        self.prompt_tokens_total += generation.prompt_tokens
        behaviour = generation.behaviour
        delay_s = behaviour.ttft_ms / 1000
        if behaviour.prefill_tok_s:
            delay_s += generation.prompt_tokens / behaviour.prefill_tok_s
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self._generate, generation)
        else:
            self._generate(generation)

    def _generate(self, generation: Generation) -> None:
        if generation not in self.running:
            return
        tok_s = generation.behaviour.tok_s
        if tok_s <= 0:
            while self.step(generation):
                pass
        elif self.step(generation):
            clock = self._clocks.get(tok_s)
            if clock is None:
                clock = self._clocks[tok_s] = StepClock(self, tok_s)
            clock.add(generation)

    def step(self, generation: Generation) -> bool:
        """Generate one token; whether there is more to come."""
        if generation not in self.running or self._misbehaves(generation):
            return False
        if generation.sink.full and generation.behaviour.tok_s > 0:
            return True
        streams = generation.asked.stream
        out = b""
        if streams:
            if generation.generated == 0:
                out = generation.opening()
            out += generation.content()
        else:
            generation.held.append(b"" if generation.script is not None else generation.word())
            generation.generated += 1
        self.generation_tokens_total += 1
        generation.record.generated = generation.generated
        more = generation.generated < generation.total
        if streams:
            if not more:
                out += generation.ending()
            if generation.behaviour.tok_s <= 0:
                generation.held.append(out)
                out = b"" if more else b"".join(generation.held)
            if out:
                generation.sink.write(out)
        elif not more:
            extra = b"x-request-id: %b\r\n" % generation.record.id.encode()
            generation.sink.write(response(200, generation.whole(), extra=extra))
        if not more:
            self._end(generation, "done", "length" if generation.finish == b'"length"' else "stop")
            generation.sink.answered()
        return more

    def _misbehaves(self, generation: Generation) -> bool:
        behaviour, at = generation.behaviour, generation.generated
        if at not in (behaviour.die_after, behaviour.hang_after, behaviour.cut_after, behaviour.error_after):
            return False
        if generation.held and generation.asked.stream:
            generation.sink.write(b"".join(generation.held))
            generation.held.clear()
        if at == behaviour.die_after:
            # What was written leaves at the end of the loop's turn.
            asyncio.get_running_loop().call_later(0.002, os._exit, DIED)
            return True
        if at == behaviour.hang_after:
            return True
        if at == behaviour.error_after:
            problem = error(500, "the simulated engine failed as it was told to")
            if generation.asked.stream:
                head, generation.head = generation.head, b""
                generation.sink.write(head + chunk(b"data: " + problem + b"\n\n") + DONE + END)
            else:
                generation.sink.write(response(500, problem))
            self._end(generation, "failed", "error")
            generation.sink.answered()
            return True
        self._end(generation, "failed", "error")
        generation.sink.close()
        return True

    def abort(self, generation: Generation) -> None:
        """The client left: its slot is free at once."""
        if generation in self.running:
            self._end(generation, "aborted", "abort")
        elif generation in self.waiting:
            self.waiting.remove(generation)
            generation.record.state = "aborted"
            self.finished["abort"] += 1

    def _end(self, generation: Generation, state: str, reason: str) -> None:
        self.running.discard(generation)
        generation.record.state = state
        self.finished[reason] += 1
        while self.waiting and len(self.running) < self.parallel:
            self._start(self.waiting.popleft())

    def metrics(self, model: str) -> bytes:
        """vLLM's names, in Prometheus' text format."""
        label = f'model_name="{model}",engine="0"'
        lines = []
        for name, kind, value in (
            ("num_requests_running", "gauge", len(self.running)),
            ("num_requests_waiting", "gauge", len(self.waiting)),
            ("kv_cache_usage_perc", "gauge", round(self.kv_used, 6)),
            ("prompt_tokens_total", "counter", self.prompt_tokens_total),
            ("generation_tokens_total", "counter", self.generation_tokens_total),
        ):
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{label}}} {value}"]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self.finished.items():
            lines.append(f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {count}')
        return ("\n".join(lines) + "\n").encode()
