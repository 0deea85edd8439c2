"""An answer that is odd costs whoever asked for it, at most: nobody else loses the model, and nothing of it is kept."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from libs.bus import Bus
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.gateway.adapters.upstream import Connection, UpstreamFailure
from services.gateway.core.faults import Fault
from services.gateway.core.sse.event_stream import EventStream
from services.gateway.inference.dispatch import RetryableFailure

from .conftest import CHAT, Client, GatewayProcess, World
from .odd import OddEngine, saying, stream, whole

OTHER = "sk-llmgw-other"
TIMES = 8
DEEP = "[" * 5000 + "]" * 5000
STOP = b'{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
DELTA = '{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":%s}}]}'
ODD: dict[str, bytes] = {
    "half a surrogate": saying('"half \\ud83d end"'),
    "not a number": saying('"so", "logprobs": NaN'),
    "a number out of range": saying('"so", "score": 1e400'),
    "deeply nested": saying(f'"so", "more": {DEEP}'),
    "content of another type": saying('{"a": [1]}'),
    "no choices": saying('"so"', choices=[]),
    "usage of another type": saying('"so"', usage={"prompt_tokens": "three", "completion_tokens": 1.5}),
    "choices that are none": whole(b'{"choices": 3}'),
    "an object cut off": whole(b'{"choices": [{"message": {"content": "a'),
}
ODD_STREAMS: dict[str, bytes] = {
    "half a surrogate": stream((DELTA % '"half \\ud83d"').encode(), (DELTA % '" end"').encode(), STOP, b"[DONE]"),
    "events of another type": stream(b"[1,2]", b"3", (DELTA % '"a"').encode(), b'{"choices":3}', STOP, b"[DONE]"),
    "deltas of another type": stream((DELTA % "[[3]]").encode(), b'{"choices":[{"delta":3}]}', STOP, b"[DONE]"),
    "deeply nested": stream((DELTA % DEEP).encode(), STOP, b"[DONE]"),
    "an endless line": stream((DELTA % ('"%s"' % ("a" * 17 * 2**20))).encode(), STOP, b"[DONE]"),
    "an endless line later": stream((DELTA % '"a"').encode(), (DELTA % ('"%s"' % ("a" * 17 * 2**20))).encode()),
}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    "/v1/responses": {"input": "hi"},
}


@pytest.fixture
async def engine() -> AsyncIterator[OddEngine]:
    async with AsyncExitStack() as stack:
        engine = OddEngine()
        await engine.start(stack)
        yield engine


@pytest.fixture
async def beside(world: World, engine: OddEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    """A gateway before the odd engine, and a key of somebody else."""
    await world.key(OTHER, key_id="k-other", project="acme/lab/other")
    await world.route(engine.endpoint)
    gateway = await world.gateway(await connect_as("gateway"))
    await eventually(lambda: _well(gateway))
    return gateway


async def _well(gateway: Client) -> bool:
    return (await gateway.chat("well", key=OTHER)).status == 200


@pytest.mark.parametrize("path", BODIES)
async def test_what_is_odd_takes_the_model_from_nobody(beside: Client, engine: OddEngine, path: str) -> None:
    for streamed, answers in ((False, ODD), (True, ODD_STREAMS)):
        for name, answer in answers.items():
            engine.answer = answer
            times = TIMES if len(answer) < 2**20 else 4
            for _ in range(times):
                said = await beside.send("POST", path, {"model": "sim", "stream": streamed, **BODIES[path]})
                assert said.status in (200, 502), (name, said.status, said.body[:200])
                if said.status == 502:
                    assert b"upstream_error" in said.body or b"api_error" in said.body, name
            assert await _well(beside), f"{name}, streamed {streamed}: the other key lost the model"


async def test_half_a_surrogate_is_mended_and_the_answer_counted(
    beside: Client, world: World, engine: OddEngine
) -> None:
    engine.answer = ODD["half a surrogate"]
    said = await beside.chat()
    assert said.status == 200
    assert said.json["choices"][0]["message"]["content"] == "half \N{REPLACEMENT CHARACTER} end"
    record = await world.record(said.request_id)
    assert (record.status, record.prompt_tokens, record.completion_tokens) == ("ok", 3, 1)


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_one_keys_failures_take_the_model_from_no_other(beside: Client, engine: OddEngine, status: int) -> None:
    """Given prompts of one key that the engine chokes on, then others are answered; what fails for two is spared."""
    engine.answer = whole(b'{"error": {"message": "choked"}}', status)
    for _ in range(30):
        assert (await beside.chat()).status == 502
    assert await _well(beside)
    for _ in range(2):
        for key in ({}, {"key": OTHER}):
            last = await beside.chat(**key)
    assert (last.status, last.error["code"]) == (503, "no_endpoint")


async def test_nothing_of_an_odd_answer_is_kept(beside: Client, engine: OddEngine) -> None:
    """Given answers that are given up, then no cycle holds what came: memory is free at once, not when gc runs."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for answer in (*ODD.values(), *ODD_STREAMS.values(), whole(b"{}", 500), whole(b"{}", 400), b"not HTTP at all"):
            engine.answer = answer
            for path, body in BODIES.items():
                for streamed in (False, True):
                    await beside.send("POST", path, {"model": "sim", "stream": streamed, **body})
        gc.collect()
        kept = [type(one).__name__ for one in gc.garbage if isinstance(one, KEPT)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert kept == []


KEPT = (UpstreamFailure, RetryableFailure, Fault, EventStream, Connection)


@pytest.mark.slow
async def test_a_thousand_answers_that_are_too_long_leave_a_worker_small(
    world: World, engine: OddEngine, nats_server: NatsServer, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    await world.route(engine.endpoint)
    process = GatewayProcess(tmp_path / "gateway", nats_server.url, workers=1)
    process.start()
    try:
        client = Client(process.port)
        engine.answer = saying('"well"')
        await eventually(lambda: _well_by(client))
        long_line = ODD_STREAMS["an endless line"]
        long_answer = saying(json.dumps("a" * 65 * 2**20))
        for turn in range(1000):
            streamed = turn % 10 != 0
            engine.answer = long_line if streamed else long_answer
            said = await client.chat(stream=streamed)
            assert said.status == 502
        assert (await client.chat("well")).status == 200
        (worker,) = process.workers()
        mib = _resident_bytes(worker) / 2**20
        record_property("figure", f"a worker after 1,000 answers that were too long: {mib:.0f} MiB")
        assert mib < 150
    finally:
        process.stop()


async def _well_by(client: Client) -> bool:
    return (await client.chat("well")).status == 200


def _resident_bytes(pid: int) -> int:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
