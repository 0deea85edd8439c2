"""Schedulers killed, frozen, cut off and set against each other: another decides, no decision stands twice, and no
silence is made up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from libs.bus import AskFailed, Authority, Bus, NotLeader
from libs.events import Event
from libs.events.commands import ScaleModel
from libs.events.leadership import SchedulerElected
from libs.events.model import ModelDefined, ModelUnplaced, Scaling
from libs.events.node import NodeLost, NodeReturned
from libs.events.questions import SchedulerState, StateAnswer
from libs.events.replica import ReplicaPlaced, ReplicaReady
from libs.events.shard import ShardStarting
from libs.testing import eventually
from services.scheduler.replay import fold
from tests.integration.scheduler.agent import SchedulerProcess, scheduler
from tests.integration.scheduler.cluster import LENGTHS, WAIT_S, Cluster
from tests.unit.scheduler.harness import cpu_profile, gpu_profile, model_spec

SPEC = model_spec("m", 1, cpu_profile(memory_mb=100))


async def leads(bus: Bus, instance: str) -> bool:
    """Questions go to any instance; ask until the one meant says that it leads."""
    try:
        answer = await bus.ask(SchedulerState(), StateAnswer, timeout_s=1)
    except AskFailed:
        return False
    return answer.leader and answer.instance == instance


async def test_a_killed_leader_is_followed_within_twelve_seconds(unled: Cluster, tmp_path: Path) -> None:
    machine = await unled.machine("cpu-1")
    first = SchedulerProcess(unled.server, tmp_path, "s-1")
    try:
        await eventually(lambda: leads(unled.bus, "s-1"), 15)
        second = SchedulerProcess(unled.server, tmp_path, "s-2")
        try:
            await unled.define(SPEC)
            [kept] = await unled.serves("m")
            engines = machine.engines
            first.kill()
            killed = time.monotonic()
            await unled.command(ScaleModel(model="m", scaling=Scaling(min=2)))
            assert time.monotonic() - killed < 12
            assert kept in await unled.serves("m", 2)
            assert machine.engines.items() > engines.items(), "no engine restarts because a scheduler died"
            state = await unled.bus.ask(SchedulerState(), StateAnswer)
            assert (state.leader, state.instance) == (True, "s-2")
            await eventually(lambda: unled.log[-1][0] >= state.position)
            assert fold(one for one in unled.log if one[0] <= state.position).hash == state.hash
        finally:
            second.stop()
    finally:
        first.kill()


async def test_a_frozen_leader_that_wakes_up_decides_nothing(
    unled: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is the sleeper that must not make up a silence; here a busy machine may be silent for real.
    for name in LENGTHS:
        if name.endswith(".LOST_AFTER_MS"):
            monkeypatch.setattr(name, 60_000)
    await unled.machine("cpu-1", cores=1)
    frozen = SchedulerProcess(unled.server, tmp_path, "s-1")
    try:
        await eventually(lambda: leads(unled.bus, "s-1"), WAIT_S)
        await unled.define(model_spec("m", 0, cpu_profile(memory_mb=100)))
        os.kill(frozen.pid, signal.SIGSTOP)
        async with scheduler(unled.server, tmp_path, "s-2") as other:
            await eventually(lambda: other.authority.leading, WAIT_S)
            # The command goes to the sleeper, who still waits for one: awake again, it decides on it in vain.
            scaled = asyncio.create_task(unled.command(ScaleModel(model="m", scaling=Scaling(min=1))))
            os.kill(frozen.pid, signal.SIGCONT)
            await scaled
            await unled.serves("m")
            await unled.define(model_spec("n", 1, cpu_profile(memory_mb=100)))
            await unled.happened(ModelUnplaced, model="n")
            # While it leads: when it stops, the other one may lead again.
            assert [event.instance for event in unled.events(SchedulerElected)] == ["s-1", "s-2"]
            assert [event.model for event in unled.events(ReplicaPlaced)] == ["m"]
            assert not unled.events(NodeLost)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
        frozen.kill()


async def test_of_two_that_lead_at_once_only_the_newer_ones_decisions_stand(
    unled: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lease keeps them apart, and the older never gives up: both want to give the same GPUs away."""
    await unled.machine("g1", gpus=2)
    async with scheduler(unled.server, tmp_path, "s-1") as older:
        await eventually(lambda: older.authority.leading)
        stood, refused = watched(older.authority)
        async with scheduler(unled.server, tmp_path, "s-2") as newer:
            forced(newer.authority)
            monkeypatch.setattr(older.authority, "_lose", lambda why: None)
            monkeypatch.setattr(older.authority, "_on_change", None)
            await unled.happened(SchedulerElected, 2)
            begun = unled.log[-1][0]
            await asyncio.gather(*(unled.define(model_spec(f"m-{n}", 1, gpu_profile())) for n in range(6)))
            await unled.happened(ReplicaReady, 2)
            await unled.happened(ModelUnplaced, 4)
            assert older.authority.leading
            assert newer.authority.leading
            await eventually(lambda: {ReplicaPlaced, ModelDefined} <= {type(event) for event in refused}, WAIT_S)
    # Where both decided the same, the newer one's stands, and the older one takes it for its own.
    log = dict(unled.log)
    assert not [event for sequence, event in stood if sequence > begun and log[sequence] == event]
    assert len(unled.events(ReplicaPlaced)) == 2


def forced(authority: Authority[Any]) -> None:
    """Let it lead, whoever holds the lease."""

    async def yes() -> bool:
        return True

    authority._lease.acquire = authority._lease.renew = yes  # type: ignore[method-assign]


def watched(authority: Authority[Any]) -> tuple[list[tuple[int, Event]], list[Event]]:
    """Decisions that were taken from now on, where they stand, and those refused because another leads."""
    stood: list[tuple[int, Event]] = []
    refused: list[Event] = []
    append = authority._bus.append

    async def record(event: Event, **about: Any) -> int:
        try:
            sequence = await append(event, **about)
        except NotLeader:
            refused.append(event)
            raise
        stood.append((sequence, event))
        return sequence

    authority._bus.append = record  # type: ignore[method-assign]
    return stood, refused


async def test_nothing_is_lost_because_the_bus_was_away(unled: Cluster, tmp_path: Path) -> None:
    machine = await unled.machine("cpu-1")
    async with scheduler(unled.server, tmp_path):
        await unled.define(SPEC)
        await unled.serves("m")
        unled.server.kill()
        await asyncio.sleep(5)  # twice as long as a machine may be silent here
        unled.server.restart()
        await eventually(lambda: unled.bus.connected, 15)
        outcome = await unled.bus.command(ScaleModel(model="m", scaling=Scaling(min=2)))
        assert outcome.status == "done"
        both = await unled.serves("m", 2)
        assert not unled.events(NodeLost)
        assert len(unled.events(ShardStarting)) == 2

        machine.happens("silent")
        await unled.happened(NodeLost)
        await eventually(lambda: [one.silent for one in unled.endpoints("m")] == [True, True], WAIT_S)
        machine.happens("heard")
        await unled.happened(NodeReturned)
        await eventually(lambda: unled.endpoints("m") == both, WAIT_S)
        assert len(unled.events(ShardStarting)) == 2
