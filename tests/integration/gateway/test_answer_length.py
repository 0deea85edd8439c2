"""Requests that ask for more tokens than there is room for, and what a client is told before an engine counted."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import msgspec
import pytest

from libs.bus import Bus
from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import CHAT, KEY, Client, World
from .test_odd_answers import Fixed, fixed, stream, whole
from .test_protocols import asked, events_of

__all__ = ["fixed"]

SHORTENING = (("/v1/messages", "max_tokens"), ("/v1/responses", "max_output_tokens"))


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    await world.route(sim_engine, context_length=32768, capabilities=())
    return await world.gateway(await connect_as("gateway"))


def words(path: str, count: int, **more: Any) -> dict[str, Any]:
    body = asked(path, **more)
    text = "word " * count
    return body | ({"input": text} if path == "/v1/responses" else {"messages": [{"role": "user", "content": text}]})


async def test_an_answer_gets_the_room_the_prompt_leaves(gateway: Client, world: World) -> None:
    for path, field in SHORTENING:
        for streamed in (False, True):
            body = words(path, 32_000, stream=streamed, **{field: 32_000})
            response = await gateway.send("POST", path, body, headers=("x-sim-tok-s: 0",))
            assert response.status == 200, response.body
            warning = response.headers["x-llmgw-warning"]
            assert warning.startswith(f"{field} is 32000 and a prompt of 32000 tokens leaves room for 768 of 32768")
            record = await world.record(response.request_id)
            assert (record.status, record.completion_tokens, record.attempts) == ("ok", 768, 1)


async def test_an_answer_gets_what_the_model_gives(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.route(sim_engine, context_length=4096, max_output_tokens=16, capabilities=())
    gateway = await world.gateway(await connect_as("gateway"))
    for path, field in SHORTENING:
        response = await gateway.send("POST", path, asked(path, **{field: 64_000}))
        assert response.status == 200, response.body
        assert response.headers["x-llmgw-warning"].startswith(f"{field} is 64000, 'sim' answers with at most 16")
        assert (await world.record(response.request_id)).completion_tokens == 16
    refused = await gateway.send("POST", CHAT, asked(CHAT, max_tokens=64_000))
    assert (refused.status, refused.error["code"]) == (400, "max_tokens_too_large")


async def test_who_may_not_be_shortened_is_told_in_the_words_clients_know(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.route(sim_engine, context_length=32768, capabilities=())
    gateway = await world.gateway(await connect_as("gateway"), shorten_answers=False)
    both = (
        "input length and `max_tokens` exceed context limit: 8000 + 32000 > 32768, decrease input length or "
        "`max_tokens` and try again"
    )
    alone = "prompt is too long: 40000 tokens > 32768 maximum"
    for path, field in (*SHORTENING, (CHAT, "max_tokens")):
        refused = await gateway.send("POST", path, words(path, 8000, **{field: 32_000}))
        assert (refused.status, refused.error["message"]) == (400, both)
        refused = await gateway.send("POST", path, words(path, 40_000, **{field: 32_000}))
        assert (refused.status, refused.error["message"]) == (400, alone)
        if path != "/v1/messages":
            assert refused.error["code"] == "context_length_exceeded"
    over = await gateway.send("POST", "/v1/messages", asked("/v1/messages", max_tokens=64_000))
    wanted = "max_tokens: 64000 > 32768, which is the maximum allowed number of output tokens for this model"
    assert over.error["message"] == wanted


async def test_a_message_begins_with_an_estimate_of_its_prompt(gateway: Client) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}}
    content = [image, {"type": "text", "text": "word " * 800}]
    body = asked("/v1/messages", stream=True, messages=[{"role": "user", "content": content}])
    first, *_, last, _ = events_of(await gateway.send("POST", "/v1/messages", body))
    assert 900 < first["message"]["usage"]["input_tokens"] < 1200
    assert last["usage"]["input_tokens"] == 800


async def test_the_stop_sequence_is_told_where_llama_cpp_is_asked(
    fixed: Fixed, world: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    gateway = await world.gateway(await connect_as("gateway"))
    verbose = b',"__verbose":{"stop_type":"word","stopping_word":"END","prompt":"x"}}'
    asked_for = set()
    for engine in ("vllm", "llamacpp"):
        await world.route(msgspec.structs.replace(fixed.endpoint, engine=engine), capabilities=())
        await eventually(lambda engine=engine: _engine(gateway) == engine)
        for streamed in (False, True):
            fixed.kind = "text/event-stream" if streamed else "application/json"
            fixed.answer = stream('{"content":"a"}') if streamed else whole('{"content":"a"}')
            at = fixed.answer.rindex(b"}]}")
            fixed.answer = fixed.answer[: at + 2] + verbose + fixed.answer[at + 3 :]
            body = asked("/v1/messages", stop_sequences=["END"], stream=streamed)
            response = await gateway.send("POST", "/v1/messages", body)
            told = events_of(response)[-2]["delta"] if streamed else response.json
            assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")
            sent = json.loads(fixed.bodies[-1])
            assert sent["stop"] == ["END"]
            asked_for.add((engine, sent.get("verbose")))
    assert asked_for == {("llamacpp", True), ("vllm", None)}


def _engine(gateway: Client) -> str:
    assert gateway.service is not None
    served = gateway.service._routes.find("sim")
    return served.targets[0].endpoint.engine if served is not None else ""


async def test_both_versions_of_anthropics_protocol_are_answered_alike(gateway: Client) -> None:
    """Sampling parameters, which the newer one has no more, are the engine's matter: they are passed on."""
    bodies = []
    for version in ("2023-06-01", "2026-10-21"):
        async with anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{gateway.port}",
            api_key=KEY,
            max_retries=0,
            default_headers={"anthropic-version": version},
        ) as sdk:
            more: Any = {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
            hi: Any = [{"role": "user", "content": "say hello"}]
            whole = await sdk.messages.create(model="sim", max_tokens=5, messages=hi, extra_body=more)
            async with sdk.messages.stream(model="sim", max_tokens=5, messages=hi, extra_body=more) as opened:
                final = await opened.get_final_message()
            bodies.append([one.to_dict() | {"id": ""} for one in (whole, final)])
            counted = await sdk.messages.count_tokens(model="sim", messages=hi)
            assert counted.input_tokens == 2
            with pytest.raises(anthropic.NotFoundError):
                await sdk.messages.create(model="none", max_tokens=5, messages=hi)
    assert bodies[0] == bodies[1]


async def test_a_schema_that_was_promised_must_be_there(gateway: Client) -> None:
    for path, more, field in (
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ):
        refused = await gateway.send("POST", path, asked(path, **more))
        assert (refused.status, refused.error["param"]) == (400, field)
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert (await gateway.send("POST", CHAT, asked(CHAT, response_format=form))).status == 200
