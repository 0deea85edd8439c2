"""Many clients that come and go: nobody gets a byte of another's answer, and nothing of them is left."""

from __future__ import annotations

import asyncio
import random

from libs.testing import eventually
from libs.testing.engine import SimEngine
from tests.integration.gateway.conftest import Client, World, gateway, world

__all__ = ["gateway", "world"]


async def test_answers_never_mix_and_nothing_is_left(gateway: Client, world: World, sim_engine: SimEngine) -> None:
    await asyncio.to_thread(sim_engine.behave, echo=True, tok_s=200)  # slow enough to be left
    dice = random.Random(7)
    answered = 0

    async def one(number: int) -> None:
        nonlocal answered
        words = [f"w{number}-{n}" for n in range(30)]
        leaves = dice.random() < 0.5
        after = dice.randrange(25)
        response = await gateway.chat(
            " ".join(words),
            stream=True,
            max_tokens=30,
            until=lambda response: leaves and response.body.count(b"\n\n") > after,
        )
        assert response.status == 200
        said = response.text.split() if response.done else _words_in(response.body)
        assert said == words[: len(said)]
        if response.done:
            answered += 1
            assert said == words

    async def client(numbers: range) -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(client(range(start, start + 15)) for start in range(0, 300, 15)))
    assert 100 < answered < 250
    service = gateway.service
    assert service is not None
    await eventually(lambda: len(world.records) == 300, 15)
    statuses = [record.status for record in world.records.values()]
    assert statuses.count("ok") >= answered
    assert set(statuses) <= {"ok", "cancelled"}
    assert service._spool.in_flight == 0
    assert service._router.in_flight == 0
    assert not service._dispatcher._busy
    (target,) = service._routes.targets.values()
    assert target.own == 0
    assert target.breaker.closed


def _words_in(body: bytes) -> list[str]:
    """Of the events that arrived whole."""
    import json

    events = body.split(b"\n\n")[:-1]
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events if b"[DONE]" not in event]
    return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"]).split()
