"""A scheduler that starts again reads its snapshot and the end of the log, and knows what a whole reading tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from libs.bus import Bus
from libs.events.commands import DefineModel, ScaleModel
from libs.events.model import Scaling
from libs.events.questions import ExplainModel, ModelExplained
from libs.events.views import Route
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.scheduler.core.state.evolve import evolve
from tests.unit.scheduler.harness import cpu_profile, model_spec

from .agent import Agent, scheduler


async def _endpoints(bus: Bus) -> int:
    route = await bus.view("routes", Route).get("m")
    return len(route.endpoints) if route is not None else 0


async def _serve(bus: Bus, replicas: int) -> None:
    await bus.command(ScaleModel(model="m", scaling=Scaling(min=replicas)))

    async def there() -> bool:
        return await _endpoints(bus) == replicas

    await eventually(there)


async def test_a_start_folds_only_what_its_snapshot_lacks(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[int] = []

    def counted(state, event, position):  # type: ignore[no-untyped-def]
        folded.append(position)
        return evolve(state, event, position)

    agent = await Agent(bus, "cpu-1", tmp_path).start()
    async with scheduler(nats_server, tmp_path):
        await bus.command(DefineModel(spec=model_spec("m", 1, cpu_profile(memory_mb=100))))
        await _serve(bus, 2)
        told = await bus.ask(ExplainModel(model="m"), ModelExplained)
    monkeypatch.setattr("services.scheduler.app.evolve", counted)
    async with scheduler(nats_server, tmp_path) as restored:
        await eventually(lambda: restored.authority.leading)
        assert folded, "nothing was read at all"
        assert min(folded) > max(happening.sequence for happening in told.recent)
        assert (await bus.ask(ExplainModel(model="m"), ModelExplained)).recent == told.recent
        await _serve(bus, 3)
        assert agent.starts == 3, "no engine starts anew because a scheduler did"
        folded.clear()
        async with scheduler(nats_server, tmp_path / "elsewhere", instance="other") as whole:
            await eventually(lambda: whole.authority.position == restored.authority.position)
            assert min(folded) == 1
            assert whole.authority.state.hash() == restored.authority.state.hash()
    await agent.stop()
