"""The admin API, with a real guard at the other end: a policy is declared over HTTP and then holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from libs.bus import Bus
from libs.testing import eventually
from libs.testing.engine import SimEngine
from services.guard.app import build as build_guard
from services.guard.settings import GuardSettings

from .conftest import ADMIN, Client, World

SECRET = "AKIA" + "IOSFODNN7EXAMPLE"
POLICY = {
    "name": "strict",
    "mode": "enforce",
    "default": True,
    "input": {"secrets": {"action": "block"}, "pii": {"email": "redact"}},
}


async def command(gateway: Client, body: dict[str, Any]) -> tuple[int, Any]:
    response = await gateway.send("POST", "/api/v1/commands", body, key=ADMIN)
    return response.status, response.json


async def test_a_policy_is_declared_and_holds(
    gateway: Client, world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    guard = build_guard(GuardSettings(data_dir=world.directory / "guard", instance="g-1"), await connect_as("guard"))
    await guard.start()
    world._stack.push_async_callback(guard.stop)
    await eventually(lambda: guard.not_ready() == [], 15)
    define = {"type": "cmd.guard.define_policy.v1", "spec": POLICY}
    status, outcome = await command(gateway, define)
    assert (status, outcome["status"]) == (200, "done")
    status, outcome = await command(gateway, define)
    assert (status, outcome["status"]) == (200, "unchanged")
    broken = {"name": "broken", "input": {"deny": [{"name": "d", "pattern": "("}]}}
    status, outcome = await command(gateway, define | {"spec": broken})
    assert (status, outcome["status"]) == (422, "refused")
    assert outcome["problems"][0]["path"]
    asked = await gateway.send("POST", "/api/v1/questions", {"type": "ask.guard.policies.v1"}, key=ADMIN)
    assert [policy["name"] for policy in asked.json["policies"]] == ["strict"]

    await eventually(lambda: _refused(gateway))
    await asyncio.to_thread(sim_engine.behave, echo=True)
    redacted = await gateway.chat("write to jane@example.com please", max_tokens=20)
    said = redacted.json["choices"][0]["message"]["content"]
    assert "jane" not in said
    assert "EMAIL" in said


async def _refused(gateway: Client) -> bool:
    response = await gateway.chat(f"use {SECRET} for it")
    return (
        response.status == 400
        and response.error["code"] == "content_policy"
        and "secrets" in response.error["message"]
        and SECRET not in response.body.decode()
    )
