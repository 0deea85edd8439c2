"""Streams that are silent for long: comment lines keep them open, and nothing else changes for the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from libs.bus import Bus
from libs.testing.engine import SimEngine

from .conftest import KEY, Client, Response, World
from .test_protocols import asked

COMMENT = b": keep-alive\n\n"
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    """Its interval is short."""
    await world.route(sim_engine, capabilities=())
    return await world.gateway(await connect_as("gateway"), stream_keep_alive_s=0.1)


def events(response: Response) -> list[Any]:
    found = [event.partition(b"data: ")[2] for event in response.body.split(b"\n\n") if b"data: " in event]
    return [json.loads(data) for data in found if data != b"[DONE]"]


async def test_comments_come_before_and_between_tokens_and_only_then(
    gateway: Client, world: World, sim_engine: SimEngine
) -> None:
    for path in STREAMED:
        await asyncio.to_thread(sim_engine.behave, ttft_ms=0, tok_s=500)
        plain = await gateway.send("POST", path, asked(path, stream=True))
        assert COMMENT not in plain.body, path
        await asyncio.to_thread(sim_engine.behave, ttft_ms=350, tok_s=6)
        slow = await gateway.send("POST", path, asked(path, stream=True))
        assert slow.status == 200
        assert slow.headers["content-type"].startswith("text/event-stream")
        assert slow.body.startswith(COMMENT * 2), path
        before, _, after = slow.body.partition(b"data: ")
        assert COMMENT in before
        assert COMMENT in after
        kinds = [[event.get("type"), event.get("object")] for event in events(plain)]
        assert [[event.get("type"), event.get("object")] for event in events(slow)] == kinds
        record = await world.record(slow.request_id)
        assert (record.status, record.completion_tokens) == ("ok", 5)


async def test_an_answer_at_once_gets_none(gateway: Client, sim_engine: SimEngine) -> None:
    await asyncio.to_thread(sim_engine.behave, ttft_ms=300)
    response = await gateway.chat()
    assert response.json["choices"]


async def test_an_sdk_reads_on(gateway: Client, sim_engine: SimEngine) -> None:
    await asyncio.to_thread(sim_engine.behave, ttft_ms=250, tok_s=6)
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=KEY, max_retries=0) as sdk:
        stream = await sdk.chat.completions.create(
            model="sim", messages=[{"role": "user", "content": "hi"}], max_tokens=3, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text == "tok0 tok1 tok2 "


async def test_a_failure_after_the_head_is_told_in_the_stream(
    gateway: Client, world: World, sim_engine: SimEngine
) -> None:
    for path in STREAMED:
        await asyncio.to_thread(sim_engine.behave, times=1, ttft_ms=250, error_after=0)
        response = await gateway.send("POST", path, asked(path, stream=True))
        assert response.status == 200
        assert response.done, "it ends as an answer does"
        assert response.body.startswith(COMMENT)
        *first, last = events(response)
        error = last["response"]["error"] if path == "/v1/responses" else last["error"]
        assert error["message"]
        assert [event["type"] for event in first] == (
            ["response.created", "response.in_progress"] if path == "/v1/responses" else []
        )
        record = await world.record(response.request_id)
        assert (record.status, record.http_status, record.completion_tokens) == ("upstream_error", 200, 0)
        assert (await gateway.send("POST", path, asked(path))).status == 200


async def test_another_engine_may_answer_after_the_head(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    bad = world.engine("bad")
    await asyncio.to_thread(bad.behave, ttft_ms=250, cut_after=0)
    await world.route(bad, sim_engine, capabilities=())
    gateway = await world.gateway(await connect_as("gateway"), stream_keep_alive_s=0.1)
    for path in STREAMED:
        responses = [await gateway.send("POST", path, asked(path, stream=True)) for _ in range(2)]
        for response in responses:
            record = await world.record(response.request_id)
            assert (response.status, record.status, record.completion_tokens) == (200, "ok", 5)
            assert record.attempts == 1 + response.body.startswith(COMMENT)


async def test_a_client_that_leaves_between_comments_stops_the_engine(
    gateway: Client, world: World, sim_engine: SimEngine
) -> None:
    await asyncio.to_thread(sim_engine.behave, ttft_ms=20_000)
    response = await gateway.chat(stream=True, until=lambda response: response.body.count(COMMENT) == 2)
    record = await world.record(response.request_id)
    assert (record.status, record.completion_tokens) == ("cancelled", 0)
