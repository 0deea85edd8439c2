"""Schedulers killed, frozen and cut off: another decides, no decision stands twice, and no silence is made up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from libs.bus import AskFailed, Bus, Delivery
from libs.events import Event, plane
from libs.events.commands import DefineModel, ScaleModel
from libs.events.leadership import SchedulerElected
from libs.events.model import Scaling
from libs.events.node import NodeLost
from libs.events.questions import SchedulerState, StateAnswer
from libs.events.replica import ReplicaPlaced
from libs.events.views import Route
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.scheduler.replay import fold
from tests.integration.scheduler.agent import Agent, SchedulerProcess, scheduler
from tests.unit.scheduler.harness import cpu_profile, model_spec

SPEC = model_spec("m", 1, cpu_profile(memory_mb=100))


async def log_of(bus: Bus, until: int) -> list[tuple[int, Event]]:
    events: list[tuple[int, Event]] = []

    async def keep(delivery: Delivery) -> None:
        if delivery.sequence <= until and isinstance(delivery.message, Event):
            events.append((delivery.sequence, delivery.message))

    follower = await bus.follow("EVENTS", [plane("evt")], keep)
    await follower.reached(until)
    await follower.stop()
    return events


async def leads(bus: Bus, instance: str) -> bool:
    """Questions go to any instance; ask until the one meant says that it leads."""
    try:
        answer = await bus.ask(SchedulerState(), StateAnswer, timeout_s=1)
    except AskFailed:
        return False
    return answer.leader and answer.instance == instance


async def endpoints(bus: Bus) -> int:
    route = await bus.view("routes", Route).get("m")
    return len(route.endpoints) if route is not None else 0


async def test_a_killed_leader_is_followed_within_twelve_seconds(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    agent = await Agent(bus, "cpu-1", tmp_path).start()
    first = SchedulerProcess(nats_server, tmp_path, "s-1")
    try:
        await eventually(lambda: leads(bus, "s-1"), 15)
        second = SchedulerProcess(nats_server, tmp_path, "s-2")
        try:
            await bus.command(DefineModel(spec=SPEC))
            await eventually(lambda: endpoints(bus))
            first.kill()
            killed = time.monotonic()
            outcome = await bus.command(ScaleModel(model="m", scaling=Scaling(min=2)))
            assert outcome.status == "done"
            assert time.monotonic() - killed < 12
            await eventually(lambda: _has(bus, 2))
            assert agent.starts == 2, "no engine restarts because a scheduler died"
            state = await bus.ask(SchedulerState(), StateAnswer)
            assert (state.leader, state.instance) == (True, "s-2")
            assert fold(await log_of(bus, state.position)).hash == state.hash
        finally:
            second.stop()
    finally:
        first.kill()
        await agent.stop()


async def _has(bus: Bus, count: int) -> bool:
    return await endpoints(bus) == count


async def test_a_frozen_leader_that_wakes_up_decides_nothing(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    agent = await Agent(bus, "cpu-1", tmp_path, cpu_count=1).start()
    frozen = SchedulerProcess(nats_server, tmp_path, "s-1")
    try:
        await eventually(lambda: leads(bus, "s-1"), 15)
        await bus.command(DefineModel(spec=model_spec("m", 0, cpu_profile(memory_mb=100))))
        os.kill(frozen.pid, signal.SIGSTOP)
        async with scheduler(nats_server, tmp_path, "s-2") as other:
            await eventually(lambda: other.authority.leading, 12)
            # The command goes to the sleeper, who still waits for one: awake again, it decides on it in vain.
            scaled = asyncio.create_task(bus.command(ScaleModel(model="m", scaling=Scaling(min=1))))
            os.kill(frozen.pid, signal.SIGCONT)
            assert (await scaled).status == "done"
            await eventually(lambda: endpoints(bus))
            await bus.command(DefineModel(spec=model_spec("n", 1, cpu_profile(memory_mb=100))))
            await eventually(lambda: other.authority.state.facts.models["n"].unplaced)
            events = await log_of(bus, other.authority.position)
        elected = [e.instance for _, e in events if isinstance(e, SchedulerElected)]
        assert elected == ["s-1", "s-2"]
        assert [e.model for _, e in events if isinstance(e, ReplicaPlaced)] == ["m"]
        assert not [e for _, e in events if isinstance(e, NodeLost)]
        assert agent.starts == 1
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
        frozen.kill()
        await agent.stop()


async def test_nothing_is_lost_because_the_bus_was_away(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    agent = await Agent(bus, "cpu-1", tmp_path).start()
    async with scheduler(nats_server, tmp_path) as service:
        await bus.command(DefineModel(spec=SPEC))
        await eventually(lambda: endpoints(bus))
        nats_server.kill()
        await asyncio.sleep(10)  # longer than a machine may be silent
        nats_server.restart()
        await eventually(lambda: bus.connected, 15)
        outcome = await bus.command(ScaleModel(model="m", scaling=Scaling(min=2)))
        assert outcome.status == "done"
        await eventually(lambda: _has(bus, 2), 20)
        events = await log_of(bus, service.authority.position)
        assert not [e for _, e in events if isinstance(e, NodeLost)]
        assert agent.starts == 2

        agent.speaking = False
        await eventually(lambda: service.authority.state.facts.machines["cpu-1"].lost, 15)
        await eventually(lambda: _has(bus, 0))
        agent.speaking = True
        await eventually(lambda: _has(bus, 2), 15)
        assert agent.starts == 2
    await agent.stop()
