"""Load generator for chat completions: one process, one JSON object with the figures on standard output.

    python -m bench.load URL --model NAME --concurrency 32            closed loop: the next when one is answered
    python -m bench.load URL --model NAME --rate 300                  open loop: Poisson arrivals from a seed
    python -m bench.load URL --model NAME --stream --concurrency 64   streams
    python -m bench.load URL --model NAME --stream --concurrency 50 --together
                                                                      all in the same instant, again when all have ended

The engine behind must be the simulated one: its answers are known, so every answer is checked to the letter, with its
framing, finish reason and usage. A run in which anything else came is not a measurement: see ``errors``.

    latency_ms    from sending to the last byte
    first_ms      from sending to the first byte of content (streams)
    gap_ms        longest pause between two content events of a stream
    late_ms       open loop: how late this generator itself was; large values mean it had too little CPU
    requests_s    answers that ended well inside the measured time, a second
    completed     all answers that ended well: the divisor for CPU a request
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import httptools
import uvloop

clock = time.perf_counter
TOKEN = re.compile(rb"tok(\d+) ")
WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima")
SYSTEM = "You are a helpful assistant."
DRAIN_S = 20.0


class Plan:
    """The requests of a run: different prompts, the same size, and what a right answer to each is."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        url = urlsplit(chosen.url)
        self.host, self.port = url.hostname or "127.0.0.1", url.port or 80
        self.stream: bool = chosen.stream
        self.max_tokens: int = chosen.max_tokens
        self.text = b"".join(b"tok%d " % number for number in range(self.max_tokens))
        key = os.environ.get("BENCH_KEY", "")
        head = f"POST {url.path.rstrip('/')}/chat/completions HTTP/1.1\r\nhost: {url.netloc}\r\n"
        head += "content-type: application/json\r\naccept: */*\r\nuser-agent: bench\r\n"
        if key:
            head += f"authorization: Bearer {key}\r\n"
        self.requests: list[tuple[bytes, bytes]] = []
        """Bytes to send, and the usage that must come back."""
        rolled = random.Random(chosen.seed)
        for number in range(chosen.prompts):
            words = [str(number)]
            while sum(map(len, words)) + len(words) < chosen.prompt_bytes:
                words.append(rolled.choice(WORDS))
            body: dict[str, Any] = {
                "model": chosen.model,
                "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": " ".join(words)}],
                "max_tokens": self.max_tokens,
                "temperature": 0.7,
            }
            if chosen.tok_s is not None:
                body["sim"] = {"tok_s": chosen.tok_s}
            if self.stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            data = json.dumps(body).encode()
            prompt = len(words) + len(SYSTEM.split())
            usage = b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
                *(prompt, prompt + self.max_tokens, self.max_tokens),
            )
            self.requests.append((f"{head}content-length: {len(data)}\r\n\r\n".encode() + data, usage))

    def wrong(self, status: int, body: bytes, usage: bytes) -> str | None:
        """What is wrong with an answer; None when it is right to the letter."""
        if status != 200:
            return f"status {status}"
        if usage not in body:
            return "usage missing or different"
        if not self.stream:
            return None if b'"content":"%b"' % self.text in body else "content different"
        if not body.endswith(b"data: [DONE]\n\n"):
            return "no [DONE] at the end"
        if b"".join(match[0] for match in TOKEN.finditer(body)) != self.text:
            return "content different"
        return None if body.count(b'"finish_reason":"length"') == 1 else "finish reason missing"


class Client(asyncio.Protocol):
    """One connection with one request at a time. httptools calls ``on_…``, asyncio and ``Run`` the rest."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._transport: asyncio.Transport | None = None
        self._busy = False
        self.open = True
        self._begin(0)

    def _begin(self, number: int) -> None:
        self.number = number
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self.sent_at = clock()
        self.first_at = self._last_at = self.gap_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(self, number: int) -> None:
        """Send a request, by its index in the plan. The answer before it must have come."""
        self._begin(number)
        self._busy = True
        assert self._transport is not None
        self._transport.write(self._run.plan.requests[number][0])

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._failed(f"not HTTP: {type(problem).__name__}")

    def on_body(self, body: bytes) -> None:
        """A piece of the answer; when the first token came, and the longest gap between two."""
        self._body.append(body)
        if self._run.plan.stream and b'"tok' in body:
            now = clock()
            if self.first_at:
                self.gap_s = max(self.gap_s, now - self._last_at)
            else:
                self.first_at = now
            self._last_at = now

    def on_message_complete(self) -> None:
        """The answer is here."""
        if not self._busy:
            return
        self._busy = False
        self.open = self._parser.should_keep_alive()
        self._run.answered(self, self._parser.get_status_code(), b"".join(self._body))

    def _failed(self, why: str) -> None:
        self.open = False
        if self._busy:
            self._busy = False
            self._run.failed(self, why)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._failed(f"connection lost: {type(exc).__name__ if exc else 'closed'}")

    def close(self) -> None:
        """Drop the connection at once, with whatever is under way on it."""
        if self._transport is not None:
            self._transport.abort()


class Run:
    """One measurement."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.plan = Plan(chosen)
        self._next = 0
        self._in_flight = 0
        self._sending = True
        self._drained = asyncio.Event()
        self._idle: list[Client] = []
        self._clients: list[Client] = []
        self._opening: set[asyncio.Task[None]] = set()
        self.completed = self._inside = self._most_in_flight = self._shed = 0
        self.errors: Counter[str] = Counter()
        self.sample = ""
        self._latency: list[float] = []
        self._first: list[float] = []
        self._gaps: list[float] = []
        self._late: list[float] = []

    async def _connect(self) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: Client(self), self.plan.host, self.plan.port)
        self._clients.append(client)
        return client

    def _send(self, client: Client) -> None:
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        self._next = (self._next + 1) % len(self.plan.requests)
        client.send(self._next)

    def answered(self, client: Client, status: int, body: bytes) -> None:
        """An answer came whole: check and count it, then send the next one where the loop is closed."""
        now = clock()
        wrong = self.plan.wrong(status, body, self.plan.requests[client.number][1])
        if wrong is not None:
            self._note(wrong, body)
        else:
            self.completed += 1
            if client.sent_at >= self._from:
                self._latency.append(now - client.sent_at)
                if self.plan.stream:
                    self._first.append(client.first_at - client.sent_at)
                    self._gaps.append(client.gap_s)
            if self._from <= now < self._until:
                self._inside += 1
        self._after(client)

    def failed(self, client: Client, why: str) -> None:
        """No answer comes any more: count it, then go on as after an answer."""
        self._note(why, b"")
        self._after(client)

    def _note(self, why: str, body: bytes) -> None:
        self.errors[why] += 1
        self.sample = self.sample or body[:400].decode(errors="replace")

    def _after(self, client: Client) -> None:
        self._in_flight -= 1
        if self._sending and self.chosen.together and self._in_flight == 0 and clock() < self._until:
            self._all_at_once([*self._idle, client])
            return
        if self._sending and not (self.chosen.rate or self.chosen.together) and clock() < self._until:
            if client.open:
                self._send(client)
            else:
                self._open_and_send()
            return
        if client.open:
            self._idle.append(client)
        if not self._sending and self._in_flight == 0:
            self._drained.set()

    def _all_at_once(self, clients: list[Client]) -> None:
        self._idle = []
        for client in clients:
            if client.open:
                self._send(client)
            else:
                self._open_and_send()

    def _open_and_send(self) -> None:
        async def later() -> None:
            try:
                self._send(await self._connect())
            except OSError as problem:
                self.errors[f"cannot connect: {type(problem).__name__}"] += 1

        task = asyncio.create_task(later())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def go(self) -> dict[str, Any]:
        """Measure; the report that is printed."""
        chosen = self.chosen
        clients = [await self._connect() for _ in range(chosen.concurrency)]
        started, cpu = clock(), time.process_time()
        self._from = started + chosen.ramp
        self._until = self._from + chosen.duration
        if chosen.rate:
            await self._open_loop(clients)
        elif chosen.together:
            self._all_at_once(clients)
            await asyncio.sleep(self._until - clock())
        else:
            loop = asyncio.get_running_loop()
            for index, client in enumerate(clients):
                # Spread out: streams that start together would also end together, again and again.
                loop.call_later(chosen.ramp * index / len(clients), self._send, client)
            await asyncio.sleep(self._until - clock())
        self._sending = False
        if self._in_flight:
            try:
                await asyncio.wait_for(self._drained.wait(), DRAIN_S)
            except TimeoutError:
                self.errors["not answered in time"] += self._in_flight
        for client in self._clients:
            client.close()
        return self._report(time.process_time() - cpu)

    async def _open_loop(self, clients: list[Client]) -> None:
        rolled = random.Random(self.chosen.seed)
        self._idle = clients
        due = clock()
        while True:
            due += rolled.expovariate(self.chosen.rate)
            if due >= self._until:
                return
            await asyncio.sleep(max(0.0, due - clock()))
            if due >= self._from:
                self._late.append(max(0.0, clock() - due))
            if self._in_flight >= self.chosen.most_in_flight:
                self._shed += 1
                continue
            while self._idle and not self._idle[-1].open:
                self._idle.pop()
            if self._idle:
                self._send(self._idle.pop())
            else:
                self._open_and_send()

    def _report(self, cpu_s: float) -> dict[str, Any]:
        report: dict[str, Any] = {
            "completed": self.completed,
            "requests_s": round(self._inside / self.chosen.duration, 1),
            "tokens_s": round(self._inside * self.plan.max_tokens / self.chosen.duration, 1),
            "latency_ms": percentiles(self._latency),
            "errors": dict(self.errors),
            "most_in_flight": self._most_in_flight,
            "generator_cpu_s": round(cpu_s, 3),
        }
        if self.plan.stream:
            report |= {"first_ms": percentiles(self._first), "gap_ms": percentiles(self._gaps)}
        if self.chosen.rate:
            report |= {"late_ms": percentiles(self._late), "shed": self._shed}
        if self.sample:
            report["sample"] = self.sample
        return report


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50, p95, p99 and mean in milliseconds; empty when nothing was measured."""
    if not seconds:
        return {}
    ordered = sorted(seconds)

    def at(part: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000, 3)

    mean = round(sum(ordered) / len(ordered) * 1000, 3)
    return {"p50": at(0.50), "p95": at(0.95), "p99": at(0.99), "mean": mean}


def options() -> argparse.ArgumentParser:
    """Its command line."""
    parser = argparse.ArgumentParser(prog="bench.load", description="Key: environment variable BENCH_KEY.")
    parser.add_argument("url", help="base URL that ends in /v1")
    parser.add_argument("--model", default="sim")
    parser.add_argument("--concurrency", type=int, default=1, help="connections; in an open loop the first ones")
    parser.add_argument("--rate", type=float, default=0.0, help="open loop at this many requests a second")
    parser.add_argument("--together", action="store_true", help="closed loop in rounds: all start in the same instant")
    parser.add_argument("--duration", type=float, default=5.0, help="measured seconds")
    parser.add_argument("--ramp", type=float, default=0.3, help="seconds before, in which the load starts")
    parser.add_argument("--most-in-flight", type=int, default=256, help="open loop: what comes beyond is shed")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--tok-s", type=float, help="pace asked of the simulated engine; 0: at once")
    parser.add_argument("--prompt-bytes", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=64, help="how many different ones")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main() -> None:
    """Measure once and print the report as JSON; the exit status is 1 where a request failed."""
    chosen = options().parse_args()

    async def run() -> dict[str, Any]:
        return await Run(chosen).go()

    report = uvloop.run(run())
    print(json.dumps(report))
    sys.exit(1 if report["errors"] else 0)


if __name__ == "__main__":
    main()
