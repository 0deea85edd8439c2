"""Every route with every fault: the protocol's envelope, the status and code, a sentence a person can act on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from libs.bus import Bus
from libs.events.budget import LevelBudget
from libs.events.policy import PolicySpec
from libs.events.tenancy import Price
from libs.events.views import PriceView
from libs.testing import eventually
from libs.testing.engine import SimEngine
from services.gateway.core.errors import protocol_of
from services.gateway.core.http.openapi import ERRORS
from services.gateway.core.protocols.anthropic_messages.errors import error_type
from services.gateway.core.routing.circuit_breaker import Breaker

from .conftest import KEY, Client, Response, World
from .test_policies import SECRET, Guard
from .test_protocols import GENERATING, PATHS, READING, asked

DEADLINE_S = 0.4
TOO_LARGE = 30_000


class Case(NamedTuple):
    name: str
    status: int
    code: str | None
    """OpenAI's; None: whatever the engine says."""
    key: str | None = KEY
    body: bytes | None = None
    fields: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    """How the engine behaves for this request."""
    paths: tuple[str, ...] = PATHS
    word: str = ""
    """Must be in the message."""


CASES = (
    Case("no key", 401, "invalid_api_key", key=None, word="Authorization"),
    Case("wrong key", 401, "invalid_api_key", key="sk-wrong", word="not valid"),
    Case("no permission", 403, "role_missing", key="sk-viewer", word="client"),
    Case("no such model", 404, "model_not_found", fields={"model": "gpt-9"}, word="gpt-9"),
    Case("model not open", 404, "model_not_found", key="sk-narrow", word="not open to this key"),
    Case("not JSON", 400, "invalid_json", body=b'{"model"', word="JSON"),
    Case("no object", 400, "invalid_type", body=b"[1]", word="object"),
    Case("nested", 400, None, body=b'{"a":' + b"[" * 20_000, word="body"),
    Case("wrong type", 400, "invalid_type", fields={"model": [3]}, word="model"),
    Case("wrong switch", 400, "invalid_type", fields={"stream": "yes"}, paths=GENERATING, word="stream"),
    Case("too large", 413, "request_too_large", fields={"padding": "x" * TOO_LARGE}, word=str(TOO_LARGE)),
    Case("requests a minute", 429, "rate_limit_exceeded", key="sk-rpm", word="requests a minute"),
    Case("tokens a minute", 429, "rate_limit_exceeded", key="sk-tpm", word="tokens a minute"),
    Case(
        "budget", 402, "budget_exceeded", key="sk-spent", paths=(*GENERATING, *READING), word="budget of 0.000001 a day"
    ),
    Case("no endpoint", 503, "no_endpoint", fields={"model": "asleep"}, word="asleep"),
    Case("policy missing", 503, "policy_missing", key="sk-lost", word="lost"),
    Case("engine 400", 400, None, engine={"fail_status": 400}, paths=(*GENERATING, *READING)),
    Case("engine 401", 502, "upstream_error", engine={"fail_status": 401}, paths=(*GENERATING, *READING)),
    Case("engine 429", 503, "upstream_overloaded", engine={"fail_status": 429}, paths=(*GENERATING, *READING)),
    Case("engine 500", 502, "upstream_error", engine={"fail_status": 500}, paths=(*GENERATING, *READING)),
    Case("engine closes", 502, "upstream_error", engine={"cut_after": 0}, paths=GENERATING),
    Case("engine silent", 504, "deadline_exceeded", engine={"ttft_ms": 2000}, paths=GENERATING, word="0.4 s"),
)


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    await world.route(sim_engine, capabilities=())
    await world.route(model="asleep", capabilities=())
    price = Price(model="*", prompt_micros=2_000, completion_micros=1_000)
    await world.bus.view("prices", PriceView).put("*", PriceView(price=price, version=1))
    spent = LevelBudget(account="k-spent", amount_micros=1, period="day")
    await world.key("sk-spent", key_id="k-spent", budgets=(spent,))
    await world.policy(PolicySpec(name="strict", mode="enforce", fail="closed"))
    await world.key("sk-viewer", key_id="k-viewer", roles=("viewer",))
    await world.key("sk-narrow", key_id="k-narrow", models=("other",))
    await world.key("sk-rpm", key_id="k-rpm", rpm=0)
    await world.key("sk-tpm", key_id="k-tpm", tpm=0)
    await world.key("sk-lost", key_id="k-lost", policies=("lost",))
    await world.key("sk-strict", key_id="k-strict", policies=("strict",))
    guard = Guard(await connect_as("guard"))
    await guard.start()
    options = {"deadline_s": DEADLINE_S, "max_body_bytes": TOO_LARGE, "unknown_keys_per_minute": 10_000}
    return await world.gateway(await connect_as("gateway"), **options)


def check(path: str, response: Response, case: Case) -> None:
    where = (case.name, path, response.body)
    assert response.status == case.status, where
    assert response.headers["content-type"] == "application/json", where
    protocol = protocol_of(path)
    body: Any = msgspec.json.decode(response.body, type=ERRORS[protocol])
    message = body.error.message
    assert len(message) > 20, where
    assert message[0].isupper() or message[0] in "'/" or " " in message, where
    assert case.word in message, where
    if protocol == "anthropic":
        assert body.error.type == error_type(case.status), where
        assert body.request_id == response.headers["request-id"]
    elif case.code is not None:
        assert body.error.code == case.code, where
    if case.status in (429, 503):
        assert int(response.headers["retry-after"]) >= 1, where


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_matrix(gateway: Client, sim_engine: SimEngine, case: Case) -> None:
    await eventually(lambda: _knows(gateway))
    for path in case.paths:
        for stream in (False, True) if path in GENERATING else (False,):
            if case.engine:
                _unburdened(gateway)
                await asyncio.to_thread(sim_engine.behave, times=1, **case.engine)
            body = case.body or asked(path, **({"stream": True} if stream else {})) | case.fields
            check(path, await gateway.send("POST", path, body, key=case.key), case)


async def test_what_a_rule_refuses(gateway: Client) -> None:
    await eventually(lambda: _knows(gateway))
    said = f"key {SECRET}"
    texts: dict[str, Any] = {"messages": [{"role": "user", "content": said}], "prompt": said, "input": said}
    for path in GENERATING:
        body = {name: texts.get(name, value) for name, value in asked(path).items()}
        response = await gateway.send("POST", path, body, key="sk-strict")
        check(path, response, Case("guard", 400, "content_policy", word="secrets.aws_access_key"))
        assert SECRET.encode() not in response.body


async def test_an_engine_that_dies_after_a_word(gateway: Client, sim_engine: SimEngine) -> None:
    for path in GENERATING:
        for fault in ({"cut_after": 3}, {"error_after": 3}):
            _unburdened(gateway)
            await asyncio.to_thread(sim_engine.behave, times=1, **fault)
            response = await gateway.send("POST", path, asked(path, stream=True))
            assert response.status == 200
            data = [event.partition(b"data: ")[2] for event in response.body.split(b"\n\n") if event]
            last: Any = json.loads(next(one for one in reversed(data) if one != b"[DONE]"))
            if path == "/v1/messages":
                assert last["type"] == "error"
                assert set(last["error"]) == {"type", "message"}
            elif path == "/v1/responses":
                assert (last["type"], set(last["response"]["error"])) == ("response.failed", {"code", "message"})
            else:
                msgspec.convert(last, ERRORS["openai"])


def _knows(gateway: Client) -> bool:
    assert gateway.service is not None
    priced = gateway.service._budgets._prices.of("sim") is not None
    return priced and any(view.key_id == "k-strict" for view in gateway.service._keys.views())


def _unburdened(gateway: Client) -> None:
    """What failed before is not held against the engine."""
    assert gateway.service is not None
    for target in gateway.service._routes.targets.values():
        target.breaker = Breaker()
