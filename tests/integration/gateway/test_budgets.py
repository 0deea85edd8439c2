"""Hard budgets at the gateway: what is refused and how, and what several gateways let through together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from libs.bus import Bus
from libs.events.budget import LevelBudget, Period, period_name
from libs.events.tenancy import Price
from libs.events.views import PriceView, Spend
from libs.testing import eventually
from libs.testing.engine import SimEngine
from services.gateway.cluster.gossip import EVERY_S
from services.gateway.core.routing.circuit_breaker import Breaker

from .conftest import Client, World

PRICE = Price(model="sim", prompt_micros=1_000, completion_micros=1_000_000)
"""A completion token costs 1,000 micro-units; a prompt token, 1."""
HELLO: Any = [{"role": "user", "content": "hello"}]


def budget(amount_micros: int, account: str = "k-client", period: Period = "total") -> LevelBudget:
    return LevelBudget(account=account, amount_micros=amount_micros, period=period)


async def spent(world: World, account: str, micros: int, counted: int, period: Period = "total") -> None:
    """The ledger's word: it has all that is in USAGE."""
    usage = await world.bus.transport.extent("USAGE")
    value = Spend(
        key_id=account,
        period="2026-11",
        requests=counted,
        prompt_tokens=0,
        completion_tokens=0,
        cost_micros=micros,
        ledger=usage.last,
        epoch=usage.epoch,
        spent_micros={period_name(period, datetime.now(UTC)): micros},
        counted=counted,
    )
    await world.bus.view("spend", Spend).put(account, value)


def used(gateway: Client, account: str, period: Period = "total") -> int:
    assert gateway.service is not None
    return gateway.service._gossip.spending.used(account, period, datetime.now(UTC))


def holds(gateway: Client, account: str) -> int:
    """What it holds itself in all."""
    assert gateway.service is not None
    line = gateway.service._gossip.spending._line(account, "total")
    return line.reserved + line.settled_micros


def unheard(gateway: Client, account: str) -> int:
    """What of that other hosts may not have heard."""
    assert gateway.service is not None
    spending = gateway.service._gossip.spending
    return spending._sum(spending._line(account, "total")).new


def knows(gateway: Client, key_id: str) -> bool:
    assert gateway.service is not None
    views = gateway.service._keys.views()
    return any(view.key_id == key_id and view.budgets for view in views)


def unburdened(gateway: Client) -> None:
    """Its breakers forget how the engine failed."""
    assert gateway.service is not None
    for target in gateway.service._routes.targets.values():
        target.breaker = Breaker()


async def start(world: World, connect_as: Callable[[str], Awaitable[Bus]], instance: str = "gw-1") -> Client:
    gateway = await world.gateway(await connect_as("gateway"), instance)
    assert gateway.service is not None
    prices = gateway.service._budgets._prices
    await eventually(lambda: prices.of("sim") is not None)
    return gateway


@pytest.fixture
async def priced(world: World, sim_engine: SimEngine) -> World:
    await asyncio.to_thread(sim_engine.behave, tok_s=0)
    await world.route(sim_engine, capabilities=())
    await world.bus.view("prices", PriceView).put("sim", PriceView(price=PRICE, version=1))
    return world


async def test_what_does_not_fit_is_refused_and_asks_nobody(
    priced: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await priced.key("sk-poor", key_id="k-poor", budgets=(budget(20_000, "k-poor", "month"),))
    gateway = await start(priced, connect_as)
    first = await gateway.chat(key="sk-poor", max_tokens=8)
    assert first.status == 200
    cost = first.json["usage"]["prompt_tokens"] + 8_000
    assert used(gateway, "k-poor", "month") == cost
    asked = len(sim_engine.requests())
    second = await gateway.chat(key="sk-poor", max_tokens=12)
    assert (second.status, second.error["code"], second.error["type"]) == (402, "budget_exceeded", "insufficient_quota")
    assert second.error["message"].startswith("This key has 0.0119")
    assert "left of its budget of 0.02 a month, and this request may cost 0.012" in second.error["message"]
    assert "retry-after" not in second.headers
    assert (await priced.record(second.request_id)).status == "refused_budget"
    assert len(sim_engine.requests()) == asked
    assert (await gateway.chat(key="sk-poor", max_tokens=11)).status == 200, "a smaller one fits"
    assert (await gateway.chat(key="sk-poor")).status == 402
    unsaid = await gateway.send("POST", "/v1/chat/completions", {"model": "sim", "messages": HELLO}, key="sk-poor")
    assert unsaid.status == 402, "it may be as long as an answer gets"
    counted = await gateway.send("POST", "/tokenize", {"model": "sim", "content": "hello"}, key="sk-poor")
    assert counted.status == 200, "costs nothing"
    assert (await gateway.chat()).status == 200, "other keys have nothing to do with it"


@pytest.mark.parametrize("stream", [False, True])
async def test_whatever_ends_a_request_its_reservation_ends_too(
    priced: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]], stream: bool
) -> None:
    await priced.key("sk-rich", key_id="k-rich", budgets=(budget(10**9, "k-rich"),))
    gateway = await start(priced, connect_as)
    cost = 0
    for engine in ({}, {"fail_status": 400}, {"fail_status": 500}, {"cut_after": 0}, {"cut_after": 3}):
        if engine:
            await asyncio.to_thread(sim_engine.behave, times=1, **engine)
        response = await gateway.chat(key="sk-rich", max_tokens=9, stream=stream)
        cost += await _cost(priced, response.request_id)
        assert used(gateway, "k-rich") == cost, engine
        unburdened(gateway)
    await asyncio.to_thread(sim_engine.behave, tok_s=20)
    left = await gateway.chat(key="sk-rich", max_tokens=200, stream=True, until=lambda r: r.body.count(b"tok") > 3)
    record = await priced.record(left.request_id)
    assert record.status == "cancelled"
    cost += await _cost(priced, left.request_id)
    assert used(gateway, "k-rich") == cost


async def test_a_fallback_that_is_dearer_needs_room_too(
    priced: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    cheap = Price(model="cheap", completion_micros=1_000)
    await priced.bus.view("prices", PriceView).put("cheap", PriceView(price=cheap, version=2))
    await priced.route(model="cheap", capabilities=(), fallbacks=("sim",))
    await priced.key("sk-fall", key_id="k-fall", budgets=(budget(12_000, "k-fall"),))
    gateway = await start(priced, connect_as)
    response = await gateway.chat(key="sk-fall", model="cheap", max_tokens=8)
    assert response.status == 200
    cost = await _cost(priced, response.request_id)
    assert used(gateway, "k-fall") == cost > 8_000, "at the price of the one that answered"
    refused = await gateway.chat(key="sk-fall", model="cheap", max_tokens=8)
    assert (refused.status, refused.error["code"]) == (402, "budget_exceeded")
    assert used(gateway, "k-fall") == cost


async def test_the_ledgers_word_takes_the_place_of_what_is_held(
    priced: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await priced.key("sk-team", key_id="k-team", project="acme/lab/web", budgets=(budget(50_000, "acme/lab/*"),))
    gateway = await start(priced, connect_as)
    assert (await gateway.chat(key="sk-team", max_tokens=8)).status == 200
    held = used(gateway, "acme/lab/*")
    assert held > 8_000
    await eventually(lambda: priced.batches)
    await spent(priced, "acme/lab/*", 30_000 + held, 4)
    await eventually(lambda: used(gateway, "acme/lab/*") == 30_000 + held)
    refused = await gateway.chat(key="sk-team", max_tokens=20)
    assert refused.status == 402
    assert refused.error["message"].startswith("The team acme/lab has 0.011")
    assert (await gateway.chat(key="sk-team", max_tokens=8)).status == 200
    await priced.key("sk-team", key_id="k-team", project="acme/lab/web", budgets=(budget(100_000, "acme/lab/*"),))
    await eventually(lambda: _accepted(gateway, "sk-team", 20))


async def _accepted(gateway: Client, key: str, max_tokens: int) -> bool:
    return (await gateway.chat(key=key, max_tokens=max_tokens)).status == 200


async def test_openai_and_anthropic_clients_give_up_at_once(
    priced: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    """With as many retries as they like: one request each goes out, and none of it is slept over."""
    await priced.key("sk-spent", key_id="k-spent", budgets=(budget(1, "k-spent"),))
    gateway = await start(priced, connect_as)
    url = f"http://127.0.0.1:{gateway.port}"
    began = time.monotonic()
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-spent", max_retries=9) as gpt,
        anthropic.AsyncAnthropic(base_url=url, api_key="sk-spent", max_retries=9) as claude,
    ):
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: gpt.chat.completions.create(model="sim", messages=HELLO),
            lambda: gpt.chat.completions.create(model="sim", messages=HELLO, stream=True),
            lambda: gpt.completions.create(model="sim", prompt="once"),
            lambda: gpt.responses.create(model="sim", input="hello"),
            lambda: gpt.embeddings.create(model="sim", input="hello"),
        ]
        for call in calls:
            with pytest.raises(openai.APIStatusError) as refused:
                await call()
            assert (refused.value.status_code, refused.value.code) == (402, "budget_exceeded")
            assert refused.value.type == "insufficient_quota"
            assert "ask your administrator" in str(refused.value).lower()
        for stream in (False, True):
            with pytest.raises(anthropic.APIStatusError) as stopped:
                await claude.messages.create(model="sim", max_tokens=5, messages=HELLO, stream=stream)
            assert stopped.value.status_code == 402
            assert stopped.value.body["error"]["type"] == "billing_error"  # type: ignore[index]
    assert time.monotonic() - began < 5
    await eventually(lambda: len(priced.records) == len(calls) + 2)
    assert {record.status for record in priced.records.values()} == {"refused_budget"}
    assert len({record.request_id for record in priced.records.values()}) == len(calls) + 2


async def test_three_hosts_use_a_share_each_until_they_hear_of_each_other(
    priced: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    """50 at once on three gateways, budget for 10."""
    each = 1_000 * 100
    await asyncio.to_thread(sim_engine.behave, tok_s=200)
    gateways = [await start(priced, connect_as, f"gw-{n}") for n in range(3)]
    await priced.key("sk-ten", key_id="k-ten", budgets=(budget(10 * each + 999, "k-ten"),))
    await eventually(lambda: all(knows(gateway, "k-ten") for gateway in gateways))
    responses = await asyncio.gather(
        *(gateways[n % 3].chat(key="sk-ten", max_tokens=99, stream=True) for n in range(50))
    )
    statuses = [response.status for response in responses]
    assert set(statuses) == {200, 402}
    assert 9 <= statuses.count(200) <= 10 + 2, "a third each, and one more for each other host"
    cost = sum([await _cost(priced, response.request_id) for response in responses])
    assert cost <= 12 * each
    await eventually(lambda: [used(gateway, "k-ten") for gateway in gateways] == [cost] * 3)
    statuses = []
    for turn in range(6):
        await eventually(lambda: all(unheard(gateway, "k-ten") == 0 for gateway in gateways))
        statuses.append((await gateways[turn % 3].chat(key="sk-ten", max_tokens=99)).status)
    assert cost + statuses.count(200) * each > 9 * each, "what is left can be used"


async def test_one_after_the_other_three_gateways_keep_a_budget_exactly(
    priced: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    """Slower than they tell each other, nothing is let through that does not fit, and all that fits is."""
    gateways = [await start(priced, connect_as, f"gw-{n}") for n in range(3)]
    await priced.key("sk-even", key_id="k-even", budgets=(budget(6_000, "k-even"),))
    await eventually(lambda: all(knows(gateway, "k-even") for gateway in gateways))
    cost = 0
    statuses = []
    for turn in range(7):
        gateway = gateways[turn % 3]
        response = await gateway.chat(key="sk-even", max_tokens=1)
        statuses.append(response.status)
        cost += await _cost(priced, response.request_id)
        await eventually(lambda cost=cost: all(used(one, "k-even") == cost for one in gateways), 5)  # type: ignore[misc]
        await eventually(lambda: all(unheard(one, "k-even") == 0 for one in gateways), 5)
    assert statuses == [200] * 5 + [402] * 2, "the prompts want a little too"
    assert 5_000 < cost <= 6_000


async def _cost(world: World, request_id: str) -> int:
    record = await world.record(request_id)
    if record.status not in ("ok", "cancelled"):
        return 0
    return PRICE.cost_micros(record.prompt_tokens, record.cached_tokens, record.completion_tokens)


async def test_a_gateway_that_dies_gives_back_what_it_had_reserved(
    priced: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.core.admission.other_hosts.KEPT_S", 1.5)
    await priced.key("sk-gone", key_id="k-gone", budgets=(budget(300_000, "k-gone"),))
    first, second = [await start(priced, connect_as, name) for name in ("gw-1", "gw-2")]
    await asyncio.to_thread(sim_engine.behave, tok_s=5)
    answering = asyncio.create_task(first.chat(key="sk-gone", max_tokens=250, stream=True))
    await eventually(lambda: used(second, "k-gone") > 250_000)
    assert (await second.chat(key="sk-gone", max_tokens=100)).status == 402
    assert first.service is not None
    for task in first.service._gossip._tasks:
        task.cancel()  # as far as the others can hear it is dead
    await eventually(lambda: used(second, "k-gone") == 0, EVERY_S + 5)
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


async def test_a_gateway_started_again_knows_what_the_ledger_does_not(
    priced: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await priced.key("sk-kept", key_id="k-kept", budgets=(budget(30_000, "k-kept"),))
    gateway = await start(priced, connect_as)
    for _ in range(3):
        assert (await gateway.chat(key="sk-kept", max_tokens=8)).status == 200
    held = used(gateway, "k-kept")
    assert 24_000 < held < 25_000
    await eventually(lambda: len(priced.records) == 3)
    await gateway.stop()
    again = await start(priced, connect_as)
    assert used(again, "k-kept") == held, "the ledger never came"
    assert (await again.chat(key="sk-kept", max_tokens=8)).status == 402
    await eventually(lambda: len(priced.records) == 4)
    await spent(priced, "k-kept", held, 3)
    await eventually(lambda: holds(again, "k-kept") == 0)
    assert used(again, "k-kept") == held


async def test_a_gateway_that_is_new_knows_at_once_what_the_others_hold(
    priced: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await priced.key("sk-late", key_id="k-late", budgets=(budget(20_000, "k-late"),))
    first = await start(priced, connect_as)
    for _ in range(2):
        assert (await first.chat(key="sk-late", max_tokens=8)).status == 200
    held = used(first, "k-late")
    other = await start(priced, connect_as, "gw-2")  # it is no hurry for the first to tell a budget that is not near
    await eventually(lambda: used(other, "k-late") == held)
    await first.stop()
    late = await priced.gateway(await connect_as("gateway"), "gw-3")
    assert used(late, "k-late") == held, "also of one that has ended, until the ledger says it"


async def test_a_gateway_under_another_name_over_its_spool_counts_nothing_twice(
    priced: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    """As a container is that was made anew: it has another host name, and the same volume."""
    await priced.key("sk-moved", key_id="k-moved", budgets=(budget(30_000, "k-moved"),))
    first = await start(priced, connect_as, "host-a")
    for _ in range(2):
        assert (await first.chat(key="sk-moved", max_tokens=8)).status == 200
    held = used(first, "k-moved")
    await eventually(lambda: len(priced.records) == 2)
    await first.stop()
    (priced.directory / "host-b").symlink_to(priced.directory / "host-a")
    again = await start(priced, connect_as, "host-b")
    assert used(again, "k-moved") == held
    await spent(priced, "k-moved", held, 2)
    await eventually(lambda: holds(again, "k-moved") == 0)
    assert used(again, "k-moved") == held
    assert (await again.chat(key="sk-moved", max_tokens=8)).status == 200
    await eventually(lambda: len(priced.records) == 3)
    assert len({batch.gateway_id for batch in priced.batches}) == 1


async def test_usage_is_published_again_where_the_ledger_follows_another_stream(
    priced: World, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await priced.key("sk-anew", key_id="k-anew", budgets=(budget(30_000, "k-anew"),))
    gateway = await start(priced, connect_as)
    assert (await gateway.chat(key="sk-anew", max_tokens=8)).status == 200
    held = used(gateway, "k-anew")
    await eventually(lambda: len(priced.records) == 1)
    word = Spend(key_id="k-anew", period="2026-11", requests=0, prompt_tokens=0, completion_tokens=0, cost_micros=0)
    view = priced.bus.view("spend", Spend)
    await view.put("k-anew", msgspec.structs.replace(word, ledger=10**6, epoch="2026-01-01"))
    await eventually(lambda: holds(gateway, "k-anew") == 0)
    assert (await gateway.chat(key="sk-anew", max_tokens=8)).status == 200
    await eventually(lambda: len(priced.records) == 2)
    assert gateway.service is not None
    before = gateway.service._spool.marks.end
    assert before > 0
    await view.put("k-anew", msgspec.structs.replace(word, epoch="2026-02-02", spent_micros={"total": held}))
    await eventually(lambda: gateway.service._spool.marks.epoch == "2026-02-02" and gateway.service._spool.marks.end)  # type: ignore[union-attr]
    assert used(gateway, "k-anew") >= 2 * held - 2, "until it is counted"
