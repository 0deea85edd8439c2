"""Every route beside chat: the same rules, the same book-keeping, each in its own protocol."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from libs.bus import Bus
from libs.events.policy import PolicySpec
from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import Client, Response, World
from .test_policies import SECRET, Guard

HI = [{"role": "user", "content": "say hello now"}]
TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def asked(path: str, **more: Any) -> dict[str, Any]:
    """A request of each route."""
    body: dict[str, Any] = {
        "/v1/chat/completions": {"messages": HI, "max_tokens": 5},
        "/v1/completions": {"prompt": "say hello now", "max_tokens": 5},
        "/v1/messages": {"messages": HI, "max_tokens": 5},
        "/v1/messages/count_tokens": {"messages": HI},
        "/v1/responses": {"input": "say hello now", "max_output_tokens": 5},
        "/v1/embeddings": {"input": ["say hello", "now"]},
        "/v1/rerank": {"query": "say", "documents": ["hello", "now"]},
        "/tokenize": {"prompt": "say hello now"},
        "/detokenize": {"tokens": [1, 2, 3]},
    }[path]
    return {"model": "sim"} | body | more


GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
READING = ("/v1/embeddings", "/v1/rerank")
COUNTING = ("/v1/messages/count_tokens", "/tokenize", "/detokenize")
PATHS = (*GENERATING, *READING, *COUNTING)


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    """Its engine does everything."""
    await world.route(sim_engine, capabilities=())
    return await world.gateway(await connect_as("gateway"))


def events_of(response: Response) -> list[dict[str, Any]]:
    data = [event.partition(b"data: ")[2] for event in response.body.split(b"\n\n") if event]
    return [json.loads(text) for text in data if text != b"[DONE]"]


async def test_what_is_written_down_is_what_the_engine_did(
    gateway: Client, world: World, sim_engine: SimEngine
) -> None:
    for path in PATHS:
        for stream in (False, True) if path in GENERATING else (False,):
            more = {"stream": True} if stream else {}
            response = await gateway.send("POST", path, asked(path, **more))
            assert response.status == 200, response.body
            record = await world.record(response.request_id)
            assert (record.status, record.stream, record.tokens_estimated) == ("ok", stream, False), path
            if path in COUNTING:
                assert (record.prompt_tokens, record.completion_tokens, record.protocol) == (0, 0, "tokenize")
                continue
            done = sim_engine.requests()[response.request_id]
            used = (record.prompt_tokens, record.completion_tokens)
            assert used == (done["prompt_tokens"], done.get("generated", 0)), (path, stream)
            assert used == (3, 5 if path in GENERATING else 0)


async def test_usage_told_is_usage_written_down(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    sim_engine.behave(cached_tokens=2, thinking=3)
    for stream in (False, True):
        more = {"stream": True, "max_tokens": 6, "thinking": {"type": "adaptive"}} if stream else {"max_tokens": 6}
        response = await gateway.send("POST", "/v1/messages", asked("/v1/messages", **more))
        record = await world.record(response.request_id)
        assert (record.cached_tokens, record.reasoning_tokens, record.completion_tokens) == (2, 3, 6)
        usage = events_of(response)[-2]["usage"] if stream else response.json["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == record.prompt_tokens
        assert (usage["output_tokens"], usage["output_tokens_details"]) == (6, {"thinking_tokens": 3})
        response = await gateway.send("POST", "/v1/responses", asked("/v1/responses", stream=stream))
        record = await world.record(response.request_id)
        usage = (events_of(response)[-1]["response"] if stream else response.json)["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == record.cached_tokens == 2
        assert usage["output_tokens_details"]["reasoning_tokens"] == record.reasoning_tokens == 3
        assert (usage["input_tokens"], usage["output_tokens"]) == (record.prompt_tokens, record.completion_tokens)


async def test_who_leaves_pays_for_what_came_and_frees_the_engine(
    gateway: Client, world: World, sim_engine: SimEngine
) -> None:
    sim_engine.behave(tok_s=50)
    for path, sign in (("/v1/messages", b"text_delta"), ("/v1/responses", b"output_text.delta")):
        body = asked(path, stream=True) | {"max_output_tokens" if path.endswith("responses") else "max_tokens": 500}
        response = await gateway.send("POST", path, body, until=lambda r, sign=sign: r.body.count(sign) >= 4)
        record = await world.record(response.request_id)
        assert record.status == "cancelled"
        assert record.completion_tokens >= 2
        done = await eventually(lambda response=response: _aborted(sim_engine, response.request_id))
        assert done["generated"] < 250


def _aborted(engine: SimEngine, request_id: str) -> dict[str, Any] | None:
    done = engine.requests()[request_id]
    return done if done["state"] == "aborted" else None


async def test_an_engine_that_fails_after_a_word_is_told_in_the_stream(
    gateway: Client, world: World, sim_engine: SimEngine
) -> None:
    for fault in ({"cut_after": 3}, {"error_after": 3}):
        sim_engine.behave(times=1, **fault)
        response = await gateway.send("POST", "/v1/messages", asked("/v1/messages", stream=True))
        *_, last = events_of(response)
        assert (response.status, last["type"], last["error"]["type"]) == (200, "error", "api_error")
        assert (await world.record(response.request_id)).status == "upstream_error"
        assert (await gateway.send("POST", "/v1/messages", asked("/v1/messages"))).status == 200
        sim_engine.behave(times=1, **fault)
        response = await gateway.send("POST", "/v1/responses", asked("/v1/responses", stream=True))
        *_, last = events_of(response)
        assert (response.status, last["type"]) == (200, "response.failed")
        assert last["response"]["error"]["code"] == "server_error"
        assert last["response"]["status"] == "failed"
        assert (await world.record(response.request_id)).completion_tokens == 3
        assert (await gateway.send("POST", "/v1/responses", asked("/v1/responses"))).status == 200


async def test_an_engine_that_fails_before_a_word_gives_way_to_another(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    bad = world.engine("bad")
    bad.behave(error_after=0, fail_status=0)
    await world.route(bad, sim_engine, capabilities=())
    gateway = await world.gateway(await connect_as("gateway"))
    for path in ("/v1/messages", "/v1/responses"):
        for _ in range(4):
            response = await gateway.send("POST", path, asked(path, stream=True))
            assert response.status == 200
            assert events_of(response)[-1]["type"] in ("message_stop", "response.incomplete")
    bad.behave(fail_status=500)
    for path in READING:
        for _ in range(4):
            assert (await gateway.send("POST", path, asked(path))).status == 200


async def test_errors_come_in_the_callers_envelope(world: World, gateway: Client, sim_engine: SimEngine) -> None:
    path = "/v1/messages"
    await world.key("sk-none", key_id="k-none", models=())
    await world.key("sk-once", key_id="k-once", rpm=1)
    await world.key("sk-tool", key_id="k-tool", roles=("admin",))
    send = gateway.send
    await eventually(lambda: _known(gateway, "sk-tool"))
    cases: list[tuple[int, str, Response]] = [
        (401, "authentication_error", await send("POST", path, asked(path), key=None)),
        (401, "authentication_error", await send("POST", path, asked(path), key="sk-wrong")),
        (403, "permission_error", await send("POST", path, asked(path), key="sk-tool")),
        (404, "not_found_error", await send("POST", path, asked(path, model="gpt-9"))),
        (404, "not_found_error", await send("POST", path, asked(path), key="sk-none")),
        (404, "not_found_error", await send("POST", "/v1/messages/batches", {})),
        (405, "invalid_request_error", await send("GET", path)),
        (400, "invalid_request_error", await send("POST", path, b"{")),
        (400, "invalid_request_error", await send("POST", path, asked(path, messages=[]))),
        (400, "invalid_request_error", await send("POST", path, asked(path, max_tokens="many"))),
        (400, "invalid_request_error", await send("POST", path, b"[" * 20_000)),
    ]
    assert (await send("POST", path, asked(path), key="sk-once")).status == 200
    cases.append((429, "rate_limit_error", await send("POST", path, asked(path), key="sk-once")))
    for status, kind in ((400, "invalid_request_error"), (503, "overloaded_error"), (500, "api_error")):
        sim_engine.behave(fail_status=status)
        wanted = 502 if status == 500 else status
        cases.append((wanted, kind, await send("POST", path, asked(path, stream=True))))
    for status, kind, response in cases:
        assert response.status == status, response.body
        assert set(response.json) == {"type", "error", "request_id"}
        assert (response.json["type"], response.error["type"]) == ("error", kind)
        assert len(response.error["message"]) > 10
        assert response.json["request_id"] == response.headers["request-id"] == response.request_id
    refused = await send("POST", "/v1/responses", {"model": "sim", "input": "x", "previous_response_id": "resp_1"})
    assert (refused.status, refused.error["param"]) == (400, "previous_response_id")
    wrong = await send("POST", "/v1/responses", asked("/v1/responses", max_output_tokens="many"))
    assert (wrong.status, wrong.error["param"]) == (400, "max_output_tokens")


def _known(gateway: Client, key: str) -> bool:
    assert gateway.service is not None
    return gateway.service._keys.get(hashlib.sha256(key.encode()).hexdigest()) is not None


PNG = "iVBORw0KGgo="
IMAGES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        "messages.0.content.0",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64,"}}]}]},
    ),
    (
        "/v1/messages",
        "messages.0.content.0",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
                    ],
                }
            ]
        },
    ),
    (
        "/v1/responses",
        "input.0.content.0",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": f"data:;base64,{PNG}"}]}]},
    ),
]


async def test_a_model_that_reads_text_only_is_sent_nothing_else(
    gateway: Client, world: World, sim_engine: SimEngine
) -> None:
    await world.route(sim_engine, model="blind", capabilities=("chat",))
    await world.route(sim_engine, capabilities=("chat", "vision"))
    await eventually(lambda: _listed(gateway, "blind"))
    for path, at, fields in IMAGES:
        refused = await gateway.send("POST", path, asked(path, **fields, model="blind"))
        assert refused.status == 400, refused.body
        assert at in refused.error["message"]
        if path != "/v1/messages":
            assert (refused.error["code"], refused.error["param"]) == ("unsupported_content", at)
        assert (await gateway.send("POST", path, asked(path, **fields))).status == 200


async def _listed(gateway: Client, model: str) -> bool:
    return (await gateway.send("GET", f"/v1/models/{model}")).status == 200


async def test_a_prompt_over_the_context_is_told_by_a_code(gateway: Client) -> None:
    many = "word " * 40_000
    for path in GENERATING:
        fields = {"messages": [{"role": "user", "content": many}], "prompt": many, "input": many}
        body = {name: fields.get(name, value) for name, value in asked(path).items()}
        for stream in (False, True):
            refused = await gateway.send("POST", path, body | {"stream": stream})
            assert refused.status == 400, (path, refused.body)
            assert "prompt is too long" in refused.error["message"]
            if path != "/v1/messages":
                assert refused.error["code"] == "context_length_exceeded"
                assert refused.error["param"] in body


async def test_what_had_no_effect_is_said(gateway: Client) -> None:
    response = await gateway.send("POST", "/v1/messages", asked("/v1/messages", service_tier="auto"))
    assert response.status == 200
    assert response.headers["x-llmgw-warning"].startswith("service_tier has no meaning")
    odd = asked("/v1/messages", metadata={"a\x00\x01\x7f\r\nx-forged: 1 ü": "x"})
    response = await gateway.send("POST", "/v1/messages", odd)
    assert response.status == 200
    assert response.headers["x-llmgw-warning"].startswith("metadata.a??? x-forged: 1 ? has no meaning")


async def test_policies_hold_on_every_route(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.route(sim_engine, capabilities=())
    await world.policy(PolicySpec(name="strict", mode="enforce", default=True))
    guard = Guard(await connect_as("guard"))
    await guard.start()
    gateway = await world.gateway(await connect_as("gateway"), verdict_timeout_s=2)
    text = {"messages": [{"role": "user", "content": [{"type": "text", "text": "{}"}]}], "input": "{}"}
    text |= {"prompt": "{}", "documents": ["a", "{}"]}
    for path in PATHS:
        if path == "/detokenize":
            continue
        fields = {name: text[name] for name in text if name in asked(path)}
        for stream in (False, True) if path in GENERATING else (False,):
            body = asked(path, **fields) | ({"stream": True} if stream else {})
            secret = json.loads(json.dumps(body).replace("{}", f"key {SECRET}"))
            refused = await gateway.send("POST", path, secret)
            assert refused.status == 400, path
            assert SECRET not in refused.body.decode()
            assert (await world.record(refused.request_id)).status == "refused_guard"
            passed = await gateway.send("POST", path, json.loads(json.dumps(body).replace("{}", "write a@b.de")))
            assert passed.status == 200, (path, passed.body)
            if path not in COUNTING:
                assert "[EMAIL_1]" in sim_engine.requests()[passed.request_id]["prompt"]
    assert (await gateway.send("POST", "/detokenize", asked("/detokenize"))).status == 400
    assert (await gateway.send("POST", "/v1/embeddings", asked("/v1/embeddings", input=[[1, 2]]))).status == 400
