"""A leader that could not listen for a while takes nobody to be silent for it, and hears at once who really is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from libs.bus import Bus, Delivery
from libs.events import encode, plane
from libs.events.commands import DefineModel
from libs.events.machine import EngineFound, MachineRegistered, MachineSample
from libs.events.node import NodeJoined, NodeLost
from libs.events.questions import Examined, ExamineScheduler
from libs.testing import eventually
from libs.testing.nats import NatsServer
from tests.integration.scheduler.agent import SchedulerProcess
from tests.unit.scheduler.harness import cpu_profile, model_spec

MACHINES = 1000


class Voices:
    """As many machines as a large fleet has, which do nothing but speak."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.names = [f"gpu-{i:04}" for i in range(MACHINES)]
        self.joined = 0
        self.lost: list[str] = []

    async def register(self) -> None:
        await self._bus.follow("EVENTS", [plane("evt", "node")], self._on_event)
        now = datetime.now(UTC)
        for name in self.names:
            machine = MachineRegistered(
                at=now, machine_id=name, address=name, agent_version="1", sealing_key="00" * 32, os="linux",
                arch="x86_64", cpu_count=64, memory_total_mb=500_000,
                engines=(EngineFound(engine="sim", version="1", source="test"),),
            )  # fmt: skip
            await self._bus.append(machine, cause=f"{name}:registered")

    async def _on_event(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, NodeLost):
            self.lost.append(delivery.message.machine_id)
        self.joined += isinstance(delivery.message, NodeJoined)

    @asynccontextmanager
    async def speaking(self) -> AsyncIterator[None]:
        """Each every two seconds, evenly."""

        async def speak() -> None:
            loop = asyncio.get_running_loop()
            begun, said = loop.time(), 0
            while True:
                while said < (loop.time() - begun) * MACHINES / 2:
                    name = self.names[said % len(self.names)]
                    await self._bus.tell(MachineSample(at=datetime.now(UTC), machine_id=name))
                    said += 1
                await asyncio.sleep(0.02)

        task = asyncio.create_task(speak())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def frozen(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_nobody_is_lost_because_the_leader_or_the_bus_stood_still(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    voices = Voices(bus)
    scheduler = SchedulerProcess(nats_server, tmp_path, "s-1")
    try:
        await voices.register()
        async with voices.speaking():
            await eventually(lambda: voices.joined == MACHINES, 60)
            await asyncio.sleep(3)
            for pause_s in (2.5, 2.5, 2.5, 5.0, 9.0, 14.0):
                async with frozen(scheduler.pid):
                    await asyncio.sleep(pause_s)
                # Too short to catch up in: the next pause comes before everything is heard.
                await asyncio.sleep(0.1 if pause_s < 3 else 4)
            assert nats_server.process is not None
            async with frozen(nats_server.process.pid):
                await asyncio.sleep(9)
            await asyncio.sleep(4)
            # An administrator whose file of models is looked at, one after all before it, again and again.
            texts = [
                encode(DefineModel(spec=model_spec(f"m{i}", 1, cpu_profile(memory_mb=100)))).decode() for i in range(40)
            ]
            for _ in range(10):
                for number, text in enumerate(texts):
                    question = ExamineScheduler(command=text, after=tuple(texts[:number]))
                    assert not (await bus.ask(question, Examined, timeout_s=30)).problems
            assert not voices.lost
            voices.names.remove("gpu-0500")
            await eventually(lambda: voices.lost, 15)
            assert voices.lost == ["gpu-0500"]
    finally:
        scheduler.kill()
