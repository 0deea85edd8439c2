"""Watching a serving engine: whether it answers, gets on with its work, and still has any."""

from __future__ import annotations

import asyncio
import time

import msgspec

from libs.events.views import ShardWanted

from .adapters.engine import EngineClient
from .adapters.process import Usage
from .core.engines import Engine
from .core.liveness import Liveness, hung, observed
from .core.readings import Readings


class Vigil:
    """One engine's. ``readings`` are its figures as of the last look, None when it did not tell."""

    def __init__(self, wanted: ShardWanted, engine: Engine, client: EngineClient) -> None:
        self._wanted = wanted
        self._engine = engine
        self._client = client
        now = time.monotonic()
        self._liveness = Liveness(moved_at=now, answered_at=now)
        self._idle_since: float | None = None
        self.readings: Readings | None = None

    async def look(self, usage: Usage | None, stuck_after_s: float) -> str | None:
        """A sentence when the engine must be given up, else None. ``usage``: of its processes."""
        if self._wanted.rank > 0:
            return None  # it has no door to ask at: its leader's word counts for all
        healthy, self.readings = await asyncio.gather(self._client.healthy(), self._client.readings())
        now = time.monotonic()
        cpu_s = usage.cpu_s if usage else None
        self._liveness = observed(self._liveness, now=now, healthy=healthy, readings=self._moving(cpu_s), cpu_s=cpu_s)
        return hung(self._liveness, now, stuck_after_s)

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
