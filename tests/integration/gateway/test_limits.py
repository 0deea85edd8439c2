"""Limits and revocations over three gateways of one cluster, under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest

from libs.bus import Bus
from libs.events.budget import LevelBudget
from libs.events.tenancy import Price
from libs.events.views import PriceView
from libs.testing import eventually
from libs.testing.engine import SimEngine
from services.gateway.cluster.gossip import EVERY_S

from .conftest import Client, Response, World

REVOKED_WITHIN_S = 2.0
BUDGET = LevelBudget(account="k-odd", amount_micros=1, period="total")
PRICE = Price(model="sim", completion_micros=1_000_000)


@pytest.fixture
async def three(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> tuple[Client, Client, Client]:
    await asyncio.to_thread(sim_engine.behave, tok_s=0)
    await world.route(sim_engine)
    first, second, third = [await world.gateway(await connect_as("gateway"), instance=f"gw-{n}") for n in range(3)]
    return first, second, third


def _knows(gateway: Client, key_id: str) -> bool:
    assert gateway.service is not None
    return any(view.key_id == key_id for view in gateway.service._keys.views())


async def known(gateways: tuple[Client, ...], key_id: str) -> None:
    await eventually(lambda: all(_knows(gateway, key_id) for gateway in gateways), 2)


async def until_refused(gateways: tuple[Client, ...], key: str, at_once: int) -> tuple[list[Response], float]:
    """Ask all gateways until none has answered for a second; what was answered, and in how many seconds."""
    answered: list[Response] = []
    began = last = time.monotonic()

    async def ask(index: int) -> None:
        nonlocal last
        while time.monotonic() - last < 1.0:
            response = await gateways[index].chat(key=key, max_tokens=8)
            if response.status == 200:
                answered.append(response)
                last = time.monotonic()
            else:
                assert (response.status, response.error["code"]) == (429, "rate_limit_exceeded")
                assert 1 <= int(response.headers["retry-after"]) <= 61
                await asyncio.sleep(0.02)

    await asyncio.gather(*(ask(n % len(gateways)) for n in range(at_once)))
    return answered, last - began


async def test_requests_are_counted_over_all_gateways(three: tuple[Client, Client, Client], world: World) -> None:
    limit = 150
    await world.key("sk-rpm", key_id="k-rpm", rpm=limit, tpm=1_000_000, project="a/b/rpm")
    await known(three, "k-rpm")
    answered, seconds = await until_refused(three, "sk-rpm", 3)
    assert limit <= len(answered) <= limit * 1.02 + len(answered) / seconds * EVERY_S, (
        "what they admit before they hear of it"
    )
    left = [int(response.headers["x-ratelimit-remaining-tokens"]) for response in answered]
    assert min(left) > 990_000, "tokens are counted apart"


async def test_tokens_are_counted_over_all_gateways(three: tuple[Client, Client, Client], world: World) -> None:
    limit = 450  # reached well within the minute, on a busy machine too
    await world.key("sk-tpm", key_id="k-tpm", tpm=limit, rpm=100_000, project="a/b/tpm")
    await known(three, "k-tpm")
    answered, seconds = await until_refused(three, "sk-tpm", 3)
    each = answered[0].json["usage"]["total_tokens"]
    used = sum(response.json["usage"]["total_tokens"] for response in answered)
    before_heard = len(answered) / seconds * EVERY_S * each
    assert limit <= used <= limit * 1.02 + before_heard + 3 * each, "tokens are known when a request ends"
    assert int(answered[-1].headers["x-ratelimit-remaining-requests"]) > 99_000, "requests are counted apart"


async def test_a_revoked_key_is_refused_everywhere_within_two_seconds(
    three: tuple[Client, Client, Client], world: World
) -> None:
    await world.key("sk-gone", key_id="k-gone")
    await known(three, "k-gone")
    asking = True
    taken: dict[int, float] = {}
    refused: set[int] = set()

    async def ask(index: int) -> None:
        while asking:
            began = time.monotonic()
            response = await three[index].chat(key="sk-gone", stream=True)
            if response.status == 200:
                taken[index] = max(began, taken.get(index, 0.0))
            else:
                assert response.status in (401, 429)
                refused.add(index)

    tasks = [asyncio.create_task(ask(n % 3)) for n in range(6)]
    await eventually(lambda: len(taken) == 3)
    revoked_at = time.monotonic()
    await world.key("sk-gone", key_id="k-gone", revoked=True)
    await eventually(lambda: len(refused) == 3, REVOKED_WITHIN_S)
    asking = False
    await asyncio.gather(*tasks)
    assert max(taken.values()) - revoked_at < REVOKED_WITHIN_S


async def test_what_is_left_is_said_in_the_words_of_each_protocol(
    three: tuple[Client, Client, Client], world: World
) -> None:
    await world.key("sk-both", key_id="k-both", rpm=10, tpm=1000, project_rpm=5, project="a/b/both")
    await known(three, "k-both")
    gateway = three[0]
    first = await gateway.chat(key="sk-both")
    said = {name: value for name, value in first.headers.items() if name.startswith("x-ratelimit-")}
    assert said == {
        "x-ratelimit-limit-requests": "5",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "60s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "0s",
    }
    body = {"model": "sim", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    second = await gateway.send("POST", "/v1/messages", body, key="sk-both")
    assert second.status == 200
    said = {n.removeprefix("anthropic-ratelimit-"): v for n, v in second.headers.items() if "ratelimit" in n}
    used = first.json["usage"]["total_tokens"]
    assert (said["requests-limit"], said["requests-remaining"]) == ("5", "3")
    assert (said["tokens-limit"], said["tokens-remaining"]) == ("1000", str(1000 - used))
    for unit in ("requests", "tokens"):
        assert datetime.fromisoformat(said[f"{unit}-reset"]).tzinfo is not None
    for _ in range(3):
        assert (await gateway.chat(key="sk-both")).status == 200
    refused = await gateway.send("POST", "/v1/messages", body, key="sk-both")
    assert (refused.status, refused.headers["anthropic-ratelimit-requests-remaining"]) == (429, "0")
    assert 1 <= int(refused.headers["retry-after"]) <= 61


async def test_every_request_with_a_valid_key_counts_whatever_is_wrong_with_it(
    three: tuple[Client, Client, Client], world: World
) -> None:
    await world.key("sk-odd", key_id="k-odd", rpm=10, project="a/b/odd", budgets=(BUDGET,))
    await world.bus.view("prices", PriceView).put("sim", PriceView(price=PRICE, version=1))
    await known(three, "k-odd")
    gateway = three[0]
    chat = "/v1/chat/completions"
    messages = [{"role": "user", "content": "hi"}]
    for status, body in (
        (404, {"model": "nobody", "messages": messages}),
        (400, b'{"model": '),
        (400, {"model": "sim"}),
        (400, {"model": "sim", "messages": messages, "max_completion_tokens": 10**9}),
        (402, {"model": "sim", "messages": messages, "max_tokens": 9}),
    ):
        for _ in range(2):
            response = await gateway.send("POST", chat, body, key="sk-odd")
            assert response.status == status, response.body
    for body in ({"model": "sim", "messages": messages}, b"{", {"model": "nobody", "messages": messages}):
        response = await gateway.send("POST", chat, body, key="sk-odd")
        assert (response.status, response.headers["x-ratelimit-remaining-requests"]) == (429, "0")
    assert (await gateway.send("POST", chat, b"{", key="sk-nobody")).status == 401
