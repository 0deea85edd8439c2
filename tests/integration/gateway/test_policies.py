"""Guard policies: what is enforced is waited for, what is observed is not. The test is the guard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from libs.bus import Bus, Delivery
from libs.events.policy import Check, PolicySpec, Span, Verdict
from libs.testing import eventually
from libs.testing.engine import SimEngine

from .conftest import Client, World

SECRET = "AKIA" + "IOSFODNN7EXAMPLE"


class Guard:
    """Takes checks and answers as it is told to."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.checks: list[Check] = []
        self.answers = True

    async def start(self) -> None:
        await self._bus.work("guard-checks", self._judge)

    async def _judge(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            check = delivery.message
            assert isinstance(check, Check)
            self.checks.append(check)
            if check.reply is not None and self.answers:
                await self._bus.reply(check.reply, self.verdict(check))

    @staticmethod
    def verdict(check: Check) -> Verdict:
        edits = []
        for segment in check.segments:
            if SECRET in segment.text:
                return Verdict(check_id=check.check_id, allow=False, rule="secrets.aws_access_key", policy="strict")
            if (at := segment.text.find("a@b.de")) >= 0:
                edits.append(Span(path=segment.path, start=at, end=at + 6, replacement="[EMAIL_1]"))
        return Verdict(check_id=check.check_id, allow=True, edits=tuple(edits))


async def guarded(
    world: World,
    engine: SimEngine,
    connect_as: Callable[[str], Awaitable[Bus]],
    spec: PolicySpec,
    verdict_timeout_s: float = 1,
) -> tuple[Client, Guard]:
    await world.route(engine)
    await world.policy(spec)
    guard = Guard(await connect_as("guard"))
    await guard.start()
    return await world.gateway(await connect_as("gateway"), verdict_timeout_s=verdict_timeout_s), guard


async def test_enforced_policies_refuse_and_redact(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.key("sk-strict", key_id="k-strict", policies=("strict",))
    spec = PolicySpec(name="strict", mode="enforce", fail="closed")
    gateway, guard = await guarded(world, sim_engine, connect_as, spec)
    for stream in (True, False):
        refused = await gateway.chat(f"my key is {SECRET}", key="sk-strict", stream=stream)
        assert (refused.status, refused.error["code"]) == (400, "content_policy")
        assert "secrets.aws_access_key" in refused.error["message"]
        assert SECRET not in refused.body.decode()
        record = await world.record(refused.request_id)
        assert (record.status, record.attempts, record.prompt_tokens) == ("refused_guard", 0, 0)
    await asyncio.to_thread(sim_engine.behave, echo=True)
    allowed = await gateway.chat("grüß a@b.de 🙂", key="sk-strict", temperature=0.5, max_tokens=20)
    assert allowed.json["choices"][0]["message"]["content"].split() == ["grüß", "[EMAIL_1]", "🙂"]
    before = len(guard.checks)
    assert (await gateway.chat(f"my key is {SECRET}")).status == 200
    assert len(guard.checks) == before
    ids = {"model": "sim", "prompt": [1, 2], "max_tokens": 1}
    unread = await gateway.send("POST", "/v1/completions", ids, key="sk-strict")
    assert (unread.status, unread.error["param"]) == (400, "prompt")


async def test_without_a_verdict_the_policy_says_what_happens(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    spec = PolicySpec(name="strict", mode="enforce", fail="closed", default=True)
    gateway, guard = await guarded(world, sim_engine, connect_as, spec)
    guard.answers = False
    closed = await gateway.chat()
    assert (closed.status, closed.error["code"]) == (503, "guard_unavailable")
    await world.policy(PolicySpec(name="strict", mode="enforce", fail="open", default=True))
    assert (await eventually(lambda: _ok(gateway), 8)).status == 200


async def _ok(gateway: Client):  # type: ignore[no-untyped-def]
    response = await gateway.chat()
    return response if response.status == 200 else None


async def test_observed_policies_hold_nothing_up(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    gateway, guard = await guarded(world, sim_engine, connect_as, PolicySpec(name="watch", default=True))
    guard.answers = False
    response = await gateway.chat(f"my key is {SECRET}")
    assert response.status == 200
    check = await eventually(lambda: guard.checks[-1] if guard.checks else None)
    assert (check.request_id, check.reply, check.policies) == (response.request_id, None, ("watch",))
    assert SECRET in json.dumps([segment.text for segment in check.segments])


async def test_a_text_too_long_for_the_guard_costs_only_itself(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    watch = PolicySpec(name="watch", default=True)
    gateway, guard = await guarded(world, sim_engine, connect_as, watch, verdict_timeout_s=30)
    assert (await gateway.chat("x" * 9_000_000)).status == 200
    assert (await gateway.chat("short")).status == 200
    check = await eventually(lambda: guard.checks[-1] if guard.checks else None)
    assert [segment.text for segment in check.segments] == ["short"], "observing goes on"
    await world.key("sk-strict", key_id="k-strict", policies=("strict",))
    await world.policy(PolicySpec(name="strict", mode="enforce"))
    await eventually(lambda: _is_strict(gateway))
    for text in ("x" * 2_000_001, "\x01" * 1_900_000):
        refused = await gateway.chat(text, key="sk-strict")
        assert (refused.status, refused.error["code"]) == (413, "request_too_large")
    assert (await gateway.chat("🙂" * 1_500_000, key="sk-strict")).status == 200


async def _is_strict(gateway: Client) -> bool:
    return (await gateway.chat(SECRET, key="sk-strict")).status == 400


async def test_a_policy_that_is_named_and_not_there_lets_nothing_pass(
    world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    await world.key("sk-ruled", key_id="k-ruled", policies=("forgotten",))
    await world.route(sim_engine)
    gateway = await world.gateway(await connect_as("gateway"))
    refused = await gateway.chat("hello", key="sk-ruled")
    assert (refused.status, refused.error["code"]) == (503, "policy_missing")
    assert "'forgotten'" in refused.error["message"]
    await world.policy(PolicySpec(name="forgotten", mode="observe"))

    async def passes() -> bool:
        return (await gateway.chat("hello", key="sk-ruled")).status == 200

    await eventually(passes)
