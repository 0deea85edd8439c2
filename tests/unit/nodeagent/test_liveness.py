"""An engine is judged by its silence, not by that of the agent that watches it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from services.nodeagent.core.shard.engine_metrics import Readings
from services.nodeagent.engines.sim.engine import Sim
from services.nodeagent.shard import liveness as module
from services.nodeagent.shard.liveness import LivenessWatcher

from .wanted import shard


class Engine:
    """Answers nothing, at once or after the agent had no CPU for a while."""

    def __init__(self, stall_s: float = 0.0) -> None:
        self.stall_s = stall_s

    async def healthy(self) -> bool:
        await asyncio.sleep(0)
        time.sleep(self.stall_s)  # noqa: ASYNC251 nothing else of this process runs meanwhile
        await asyncio.sleep(0)
        return False

    async def readings(self) -> Readings | None:
        return None


def watching(engine: Engine) -> LivenessWatcher:
    client: Any = engine
    return LivenessWatcher(shard("r-a-0"), Sim(python="python"), client)


async def test_an_engine_that_answers_nothing_is_hung() -> None:
    watch = watching(Engine())
    began = time.monotonic()
    said = None
    while said is None:
        said = await watch.look(None, 0.3)
        assert time.monotonic() - began < 30
    assert "neither answered nor computed" in said


async def test_an_agent_without_cpu_takes_no_engine_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LATE_S", 0.1)
    watch = watching(Engine(stall_s=0.4))
    for _ in range(3):
        assert await watch.look(None, 0.3) is None


async def test_time_in_which_the_agent_stood_still_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_APART_S", 0.2)
    watch = watching(Engine())
    time.sleep(0.5)  # noqa: ASYNC251 as one that was frozen
    assert await watch.look(None, 0.4) is None
