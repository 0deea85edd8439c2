from __future__ import annotations

import asyncio
from typing import Any

import pytest

from libs.bus import Bus, BusAway, Delivery
from libs.bus.memory import MemoryCluster
from libs.events.policy import VerdictBatch, VerdictRecord
from libs.testing import eventually
from services.guard.verdict_publisher import VerdictPublisher


def record(number: int) -> VerdictRecord:
    return VerdictRecord(request_id=f"r{number}", project="p", allow=True, elapsed_us=1)


async def test_a_batch_whose_answer_was_lost_is_the_same_message_again(
    memory_cluster: MemoryCluster, memory_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It landed, and nobody said so until an append gave up; what came meanwhile waits behind it."""
    monkeypatch.setattr("libs.bus.bus.RETRY_FOR_S", 0.0)
    monkeypatch.setattr("libs.bus.supervision.RETRY_S", 0.01)
    bus = memory_cluster.bus("guard")
    store, lost = bus.transport.store, 2

    async def store_and_lose_the_answer(*arguments: Any, **options: Any) -> int:
        nonlocal lost
        sequence = await store(*arguments, **options)
        if lost:
            lost -= 1
            raise BusAway("no answer came")
        return sequence

    monkeypatch.setattr(bus.transport, "store", store_and_lose_the_answer)
    facts = VerdictPublisher(bus, "g")
    kept = [asyncio.create_task(facts.keep([record(n)])) for n in range(3)]
    await asyncio.gather(*kept)
    await facts.keep([record(3)])
    await facts.stop()

    seen: list[str] = []

    async def handle(delivery: Delivery) -> None:
        assert isinstance(delivery.message, VerdictBatch)
        seen.extend(one.request_id for one in delivery.message.records)

    await memory_bus.follow("USAGE", ["llmgw.use.guard.>"], handle)
    await eventually(lambda: len(seen) >= 4)
    assert seen == ["r0", "r1", "r2", "r3"]
