"""What a client gets, and what is written down about it."""

from __future__ import annotations

import asyncio
import json
import socket

from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import ADMIN, KEY, Client, Response, World


async def test_an_answer_is_the_engines_and_is_recorded(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    response = await gateway.chat(seed=7, unknown_field={"a": [1]})
    assert response.status == 200
    answer = response.json
    assert answer["choices"][0]["message"]["content"].startswith("tok0 tok1")
    assert answer["usage"]["completion_tokens"] == 8
    record = await world.record(response.request_id)
    assert record.status == "ok"
    assert (record.prompt_tokens, record.completion_tokens) == (
        answer["usage"]["prompt_tokens"],
        answer["usage"]["completion_tokens"],
    )
    assert (record.key_id, record.project, record.model) == ("k-client", "acme/lab/web", "sim")
    assert record.replica_id == f"r-{sim_engine.port}"
    assert not record.tokens_estimated
    assert response.request_id in sim_engine.requests()


async def test_a_stream_with_and_without_usage(gateway: Client, world: World) -> None:
    for asks in (True, False):
        await _stream(gateway, world, asks)


async def _stream(gateway: Client, world: World, asks: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if asks else {}
    response = await gateway.chat(stream=True, **options)
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers
    *events, done = response.events
    assert done == "[DONE]"
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert response.text == "".join(f"tok{n} " for n in range(8))
    with_usage = [event for event in events if event.get("usage")]
    assert len(with_usage) == asks
    if asks:
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 8
    record = await world.record(response.request_id)
    assert (record.status, record.stream, record.completion_tokens) == ("ok", True, 8)
    assert record.first_token_ms is not None
    assert 0 < record.first_token_ms < record.duration_ms


async def test_a_client_that_reads_late_gets_every_token(world: World, gateway: Client) -> None:
    """More than the sockets between engine and client hold: the engine waits, and nothing is lost or doubled."""
    engine = world.engine("long", options=("--context-length", "200000", "--tok-s", "200000"))
    tokens = 120_000
    body = {"model": "sim", "messages": [{"role": "user", "content": "x"}], "max_tokens": tokens, "stream": True}
    await world.route(engine, context_length=200_000)
    await eventually(lambda: _allows(gateway, tokens))
    data = json.dumps(body).encode()
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", gateway.port))
    reader, writer = await asyncio.open_connection(sock=small, limit=1024)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(data)}"
    )
    writer.write(head.encode() + b"\r\n\r\n" + data)
    made = 0

    async def waits() -> bool:
        nonlocal made
        before, made = made, sum(each["generated"] for each in engine.requests().values() if "generated" in each)
        return 0 < made == before < tokens

    await eventually(waits, 60, every_s=0.2)
    response = Response()
    while not response.done:
        response.parser.feed_data(await reader.read(65536))
    writer.close()
    assert response.text.split() == [f"tok{n}" for n in range(tokens)]
    assert (await world.record(response.request_id)).completion_tokens == tokens


async def _allows(gateway: Client, tokens: int) -> bool:
    return bool((await gateway.send("GET", "/v1/models/sim")).json["max_output_tokens"] >= tokens)


async def test_text_completions(gateway: Client, world: World) -> None:
    body = {"model": "sim", "prompt": "once", "max_tokens": 3}
    response = await gateway.send("POST", "/v1/completions", body)
    assert response.json["choices"][0]["text"].startswith("tok0")
    response = await gateway.send("POST", "/v1/completions", body | {"stream": True})
    assert response.events[-1] == "[DONE]"
    record = await world.record(response.request_id)
    assert (record.protocol, record.completion_tokens) == ("openai.completions", 3)


async def test_an_alias_is_the_model(world: World, gateway: Client, sim_engine: SimEngine) -> None:
    await world.route(sim_engine, aliases=("gpt-4o",))
    response = await eventually(lambda: _ok(gateway, model="gpt-4o"))
    record = await world.record(response.request_id)
    assert (record.model_asked, record.model) == ("gpt-4o", "sim")


async def _ok(gateway: Client, **fields: object):  # type: ignore[no-untyped-def]
    response = await gateway.chat(**fields)
    return response if response.status == 200 else None


async def test_models(gateway: Client, world: World) -> None:
    await world.route(model="asleep", capabilities=("chat",))
    await eventually(lambda: _lists(gateway, "asleep"))
    models = (await gateway.send("GET", "/v1/models")).json
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["sim", "asleep"]
    model = models["data"][0]
    assert model["object"] == "model"
    assert model["context_length"] == model["max_output_tokens"] == 4096
    assert (await gateway.send("GET", "/v1/models/sim")).json == model
    missing = await gateway.send("GET", "/v1/models/none")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    nobody = await gateway.chat(model="asleep")
    assert (nobody.status, nobody.error["code"]) == (503, "no_endpoint")
    assert int(nobody.headers["retry-after"]) >= 1


async def _lists(gateway: Client, model: str) -> bool:
    return model in (await gateway.send("GET", "/v1/models")).body.decode()


WRONG = [
    ({"model": "gpt-9"}, 404, "model_not_found", None, "this key can use: sim"),
    ({"messages": None}, 400, "missing_required_parameter", "messages", "messages"),
    ({"messages": "hi"}, 400, "invalid_type", "messages", "array"),
    ({"stream": 3}, 400, "invalid_type", "stream", "true or false"),
    ({"max_tokens": 5000}, 400, "max_tokens_too_large", "max_tokens", "4096"),
    ({"max_completion_tokens": 5000}, 400, "max_tokens_too_large", "max_completion_tokens", "4096"),
]


async def test_what_is_wrong_is_named(gateway: Client) -> None:
    for fields, status, code, param, words in WRONG:
        response = await gateway.chat(**fields)
        assert (response.status, response.error["code"], response.error["param"]) == (status, code, param)
        assert words in response.error["message"]
        assert response.request_id.startswith("req-")


async def test_paths_methods_sizes_and_encodings(gateway: Client) -> None:
    assert (await gateway.send("GET", "/v1/nothing")).error["code"] == "unknown_url"
    wrong = await gateway.send("GET", "/v1/chat/completions")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert (await gateway.send("POST", "/v1/chat/completions", b"{nonsense")).error["code"] == "invalid_json"
    packed = await gateway.send("POST", "/v1/chat/completions", b"x", headers=("content-encoding: gzip",))
    assert packed.status == 415


async def test_a_body_over_the_limit_is_refused_and_a_large_one_passes(
    world: World, sim_engine: SimEngine, connect_as
) -> None:  # type: ignore[no-untyped-def]
    await world.route(sim_engine)
    gateway = await world.gateway(await connect_as("gateway"), max_body_bytes=3_000_000)
    large = await gateway.chat("x" * 4_000_000)
    assert (large.status, large.error["code"]) == (413, "request_too_large")
    chunked = await gateway.send(
        "POST", "/v1/chat/completions", None, headers=("transfer-encoding: chunked",), until=lambda response: True
    )
    assert chunked.status == 0
    assert (await gateway.chat("x" * 2_000)).status == 200


async def test_who_may(gateway: Client, world: World) -> None:
    for key in (None, "sk-llmgw-unknown", ""):
        response = await gateway.chat(key=key)
        assert (response.status, response.error["code"]) == (401, "invalid_api_key")
    await world.key("sk-expired", expires_at=_past())
    await world.key("sk-revoked", revoked=True)
    await world.key("sk-viewer", roles=("viewer",))
    await world.key("sk-narrow", key_id="k-narrow", models=("other",))
    await eventually(lambda: _knows(gateway, "k-narrow"))
    viewer = await gateway.chat(key="sk-viewer")
    assert (viewer.status, viewer.error["code"]) == (403, "role_missing")
    for key in ("sk-expired", "sk-revoked"):
        assert (await gateway.chat(key=key)).status == 401
    narrow = await gateway.chat(key="sk-narrow")
    assert (narrow.status, narrow.error["code"]) == (404, "model_not_found")
    assert (await gateway.send("GET", "/v1/models", key="sk-narrow")).json["data"] == []
    header = await gateway.send("GET", "/v1/models", key=None, headers=("x-api-key: sk-llmgw-client",))
    assert header.status == 200
    await world.key("sk-llmgw-client", revoked=True)
    await eventually(lambda: _status(gateway, "sk-llmgw-client", 401), 2)


def _past():  # type: ignore[no-untyped-def]
    from datetime import UTC, datetime, timedelta

    return datetime.now(UTC) - timedelta(seconds=1)


async def _status(gateway: Client, key: str, status: int):  # type: ignore[no-untyped-def]
    response = await gateway.chat(key=key)
    return response if response.status == status else None


async def test_requests_a_minute(gateway: Client, world: World) -> None:
    await world.key("sk-slow", key_id="k-slow", rpm=2)
    await eventually(lambda: _knows(gateway, "k-slow"))
    first, second, third = [await gateway.chat(key="sk-slow") for _ in range(3)]
    assert (first.status, second.status, third.status) == (200, 200, 429)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert [r.headers["x-ratelimit-remaining-requests"] for r in (first, second, third)] == ["1", "0", "0"]
    assert 1 <= int(third.headers["retry-after"]) <= 61
    assert third.error["code"] == "rate_limit_exceeded"
    record = await world.record(third.request_id)
    assert (record.status, record.http_status, record.attempts, record.completion_tokens) == (
        "refused_limit",
        429,
        0,
        0,
    )


def _knows(gateway: Client, key_id: str) -> bool:
    assert gateway.service is not None
    return any(view.key_id == key_id for view in gateway.service._keys.views())


async def test_projects_and_tokens_a_minute(gateway: Client, world: World) -> None:
    await world.key("sk-team", key_id="k-team", project="a/b/c", project_rpm=1)
    await world.key("sk-tokens", key_id="k-tokens", project="a/b/d", tpm=5)
    await eventually(lambda: _knows(gateway, "k-tokens"))
    assert [(await gateway.chat(key="sk-team")).status for _ in range(2)] == [200, 429]
    assert (await gateway.chat(key="sk-tokens")).status == 200
    over = await gateway.chat(key="sk-tokens")
    assert (over.status, over.error["type"]) == (429, "tokens")


async def test_health_ready_and_readiness_without_engines(gateway: Client, world: World) -> None:
    assert (await gateway.send("GET", "/health", key=None)).json == {"status": "ok"}
    assert (await gateway.send("GET", "/ready", key=None)).status == 200
    await world.route()
    await eventually(lambda: _unready(gateway))


async def _unready(gateway: Client) -> bool:
    response = await gateway.send("GET", "/ready", key=None)
    return response.status == 503 and "no engine serves any model" in response.json["reasons"]


async def test_the_admin_api_needs_the_role(gateway: Client) -> None:
    body = {"type": "ask.scheduler.state.v1"}
    assert (await gateway.send("POST", "/api/v1/questions", body)).error["code"] == "role_missing"
    nobody = await gateway.send("POST", "/api/v1/questions", body, key=ADMIN)
    assert (nobody.status, nobody.error["code"]) == (502, "not_answered")
    for wrong in ({"type": "nonsense.v1"}, {"type": "model.removed.v1", "at": "2026-01-01T00:00:00Z", "model": "m"}):
        assert (await gateway.send("POST", "/api/v1/questions", wrong, key=ADMIN)).error["param"] == "type"
    untold = await gateway.send("POST", "/api/v1/questions", {}, key=ADMIN)
    assert (untold.status, untold.error["code"]) == (400, "missing_required_parameter")
    assert "'type' says which question it is; known are: " in untold.error["message"]
    assert "ask.scheduler.state.v1" in untold.error["message"]
    cordon = {"type": "cmd.scheduler.cordon_node.v1", "machine_id": 5}
    mistyped = await gateway.send("POST", "/api/v1/commands", cordon, key=ADMIN)
    assert mistyped.error["message"] == "Invalid value for 'machine_id': expected text, got an integer."
    extra = await gateway.send("POST", "/api/v1/questions", body | {"colour": 1}, key=ADMIN)
    assert extra.error["param"] == "colour"
