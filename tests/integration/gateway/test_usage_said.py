"""What engines say they used, where that cannot be or is not all: it is counted here, marked, and told to clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from libs.bus import Bus
from libs.events.usage import RequestRecord
from services.gateway import metrics

from .conftest import Client, World
from .odd import OddEngine, stream, whole


class Asking(NamedTuple):
    gateway: Client
    engine: OddEngine
    world: World

    async def chat(self, answer: bytes, **fields: Any) -> tuple[dict[str, int], RequestRecord]:
        """The usage a client is told, and what is written down."""
        self.engine.answer = answer
        streams = b"event-stream" in answer
        if streams:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        response = await self.gateway.chat(**fields)
        assert response.status == 200
        told = response.events[-2]["usage"] if streams else response.json["usage"]
        return told, await self.world.record(response.request_id)


@pytest.fixture
async def asking(world: World, connect_as: Callable[[str], Awaitable[Bus]]) -> AsyncIterator[Asking]:
    async with AsyncExitStack() as stack:
        engine = OddEngine()
        await engine.start(stack)
        await world.route(engine.endpoint, capabilities=())
        yield Asking(await world.gateway(await connect_as("gateway")), engine, world)


def in_one(usage: dict[str, Any], choices: int = 1, **fields: Any) -> bytes:
    message = {"role": "assistant", "content": "word " * 8}
    said = [{"index": n, "message": message, "finish_reason": "length" if n else "stop"} for n in range(choices)]
    return whole(json.dumps({"object": "chat.completion", "choices": said, "usage": usage} | fields).encode())


def streamed(*usages: dict[str, Any]) -> bytes:
    """Each choice, and what its answer used."""
    events: list[dict[str, Any]] = []
    for index, usage in enumerate(usages):
        events += [{"choices": [{"index": index, "delta": {"content": f"word{n} "}}]} for n in range(8)]
        events += [{"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}]
        events += [{"choices": [], "usage": usage}]
    return stream(*(json.dumps(event).encode() for event in events), b"[DONE]")


def used(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


async def test_what_cannot_be_is_counted_here_and_marked(asking: Asking) -> None:
    for said in (
        *(used(5, -1_000_000), used(5, 10**25), used(5, 51 * 3)),
        *(used(-1, 8), used(10**9, 8), used(10**25, 10**25)),
    ):
        for answer in (in_one(said), streamed(said)):
            told, record = await asking.chat(answer, max_tokens=50)
            assert (told["prompt_tokens"], told["completion_tokens"]) == (
                record.prompt_tokens,
                record.completion_tokens,
            )
            assert record.tokens_estimated
            assert 0 < record.prompt_tokens < 100
            assert record.completion_tokens in range(8, 120)
    for answer in (in_one(used(5, 50)), streamed(used(5, 50))):
        _, record = await asking.chat(answer, max_tokens=50)
        assert (record.prompt_tokens, record.completion_tokens, record.tokens_estimated) == (5, 50, False)


async def test_every_choice_is_charged_where_an_engine_says_what_one_used(asking: Asking) -> None:
    """As llama.cpp does: in a stream at the end of each, in one piece only of the first."""
    for answer, completion, estimated in (
        (streamed(used(9, 10), used(9, 11), used(9, 12)), 33, False),
        (in_one(used(9, 10), 3, timings={"predicted_n": 10}), 10 + 20 + 20, True),
        (in_one(used(9, 30), 3), 30, False),
    ):
        told, record = await asking.chat(answer, n=3, max_tokens=20)
        assert (record.prompt_tokens, record.completion_tokens, record.tokens_estimated) == (9, completion, estimated)
        assert told["completion_tokens"] == completion


async def test_cached_tokens_below_zero_and_a_ranking_of_fewer_are_none(asking: Asking) -> None:
    said = used(9, 8) | {"prompt_tokens_details": {"cached_tokens": -7}}
    for answer in (in_one(said), streamed(said)):
        _, record = await asking.chat(answer, max_tokens=50)
        assert (record.prompt_tokens, record.cached_tokens, record.tokens_estimated) == (9, 0, False)
    ranking = {"results": [{"index": 0, "relevance_score": 1.0}], "meta": {"tokens": {"input_tokens": -5}}}
    asking.engine.answer = whole(json.dumps(ranking).encode())
    asked = {"model": "sim", "query": "q", "documents": ["d"]}
    response = await asking.gateway.send("POST", "/v1/rerank", asked)
    assert response.status == 200, response.body
    assert (await asking.world.record(response.request_id)).prompt_tokens > 0
    metrics.flush()


async def test_a_ranking_reads_its_query_once_with_each_document(asking: Asking) -> None:
    ranking = {"results": [{"index": 0, "relevance_score": 1.0}], "usage": {"prompt_tokens": 200_000}}
    asking.engine.answer = whole(json.dumps(ranking).encode())
    asked = {"model": "sim", "query": "many words " * 200, "documents": ["d"] * 300}
    response = await asking.gateway.send("POST", "/v1/rerank", asked)
    record = await asking.world.record(response.request_id)
    assert (record.prompt_tokens, record.tokens_estimated) == (200_000, False)
