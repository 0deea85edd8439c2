"""The store is put back from a copy under a scheduler that runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from libs.bus import Bus, Delivery
from libs.events import Event
from libs.events.commands import DefineModel
from libs.events.questions import SchedulerState, StateAnswer
from libs.events.views import ModelView
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.scheduler.core.state.evolve import SUBJECTS
from services.scheduler.replay import fold
from tests.integration.scheduler.agent import SchedulerProcess
from tests.unit.scheduler.harness import cpu_profile, model_spec


async def define(bus: Bus, *names: str) -> None:
    for name in names:
        outcome = await bus.command(DefineModel(spec=model_spec(name, 1, cpu_profile(memory_mb=100))))
        assert outcome.status == "done"


async def state_of_the_log(bus: Bus) -> StateAnswer:
    """Once the scheduler has read as far as the log goes, and what the log folds to is what it says."""
    answer = await bus.ask(SchedulerState(), StateAnswer)
    read: list[tuple[int, Event]] = []

    async def keep(delivery: Delivery) -> None:
        assert isinstance(delivery.message, Event)
        read.append((delivery.sequence, delivery.message))

    follower = await bus.follow("EVENTS", SUBJECTS, keep)
    await follower.caught_up.wait()
    await follower.stop()
    folded = fold(one for one in read if one[0] <= answer.position)
    assert (folded.position, folded.hash) == (answer.position, answer.hash)
    assert answer.leader
    return answer


async def test_it_begins_anew_with_the_log_as_it_is(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    process = SchedulerProcess(nats_server, tmp_path / "data", "s-1")
    try:
        await define(bus, "first", "second")
        await asyncio.to_thread(nats_server.back_up, tmp_path / "copy")
        await define(bus, "lost-1", "lost-2")
        await asyncio.to_thread(nats_server.put_back, tmp_path / "copy")
        await define(bus, "third")
        await eventually(lambda: state_of_the_log(bus), deadline_s=30)
        models = await bus.view("models", ModelView).all()
        assert sorted(models) == ["first", "second", "third"]
        said = (tmp_path / "data" / "s-1.log").read_text()
        assert "begins anew, from the log as it is now: EVENTS was put back from a copy" in said
    finally:
        process.stop()
