"""Watching a serving engine: whether it answers, gets on with its work, and still has any."""

from __future__ import annotations

import asyncio
import time

import msgspec

from libs.events.views import ShardWanted
from services.nodeagent.adapters.engine.client import EngineClient
from services.nodeagent.adapters.engine.process import Usage
from services.nodeagent.core.engines import Engine
from services.nodeagent.core.shard.engine_metrics import Readings
from services.nodeagent.core.shard.liveness import (
    Liveness,
    hung,
    observed,
    without,
)

_TICK_S = 0.1
_LATE_S = 0.5
"""An agent that is so late itself has no CPU, and takes answers for missing that are there."""
_APART_S = 6.0
"""Looks are two seconds apart and take two at most: what is longer the agent stood still."""


class LivenessWatcher:
    """One engine's. ``readings`` are its figures as of the last look, None when it did not tell."""

    def __init__(self, wanted: ShardWanted, engine: Engine, client: EngineClient) -> None:
        self._wanted = wanted
        self._engine = engine
        self._client = client
        now = time.monotonic()
        self._liveness = Liveness(moved_at=now, answered_at=now)
        self._looked = now
        self._idle_since: float | None = None
        self.readings: Readings | None = None

    async def look(self, usage: Usage | None, stuck_after_s: float) -> str | None:
        """A sentence when the engine must be given up, else None. ``usage``: of its processes."""
        if self._wanted.rank > 0:
            return None  # it has no door to ask at: its leader's word counts for all
        began = time.monotonic()
        if began - self._looked > _APART_S:
            self._liveness = without(self._liveness, began - self._looked)
            self._looked = began
        healthy, self.readings, late_s = await self._asked()
        now, before = time.monotonic(), self._looked
        self._looked = now
        if late_s > _LATE_S and not healthy and self.readings is None:
            self._liveness = without(self._liveness, now - before)
            return None
        cpu_s = usage.cpu_s if usage else None
        self._liveness = observed(self._liveness, now=now, healthy=healthy, readings=self._moving(cpu_s), cpu_s=cpu_s)
        return hung(self._liveness, now, stuck_after_s)

    async def _asked(self) -> tuple[bool, Readings | None, float]:
        """Whether it is healthy, its figures, and by how much our own steps were late meanwhile."""
        late_s = 0.0

        async def tick() -> None:
            nonlocal late_s
            while True:
                before = time.monotonic()
                await asyncio.sleep(_TICK_S)
                late_s = max(late_s, time.monotonic() - before - _TICK_S)

        ticking = asyncio.create_task(tick())
        try:
            healthy, readings = await asyncio.gather(self._client.healthy(), self._client.readings())
        finally:
            ticking.cancel()
        return healthy, readings, late_s

    def idle_s(self) -> float:
        """How long it has had no request, counted from the first call; 0 while that is not known."""
        now, readings = time.monotonic(), self.readings
        if readings is None or readings.running or readings.waiting or self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since

    def _moving(self, cpu_s: float | None) -> Readings | None:
        """The engine's figures, with its CPU time among those that show progress where that is right."""
        readings = self.readings
        if readings is None or readings.progress is None or cpu_s is None:
            return readings
        if not self._engine.cpu_is_progress(self._wanted):
            return readings
        # Whole seconds: answering the agent's own questions costs a little as well.
        return msgspec.structs.replace(readings, progress=readings.progress + int(cpu_s))
