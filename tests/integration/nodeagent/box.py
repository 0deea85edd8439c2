"""A machine for tests: an agent on a real bus, the scheduler's side of it, and what became known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from libs.bus import Bus, Delivery
from libs.events import Event
from libs.events.machine import MachineRegistered, MachineSample
from libs.events.shard import ShardEvent
from libs.events.views import Desired, ErrandWanted, ShardWanted
from libs.testing.waiting import eventually
from services.nodeagent.adapters.disk.shard_files import ShardFiles
from services.nodeagent.adapters.engine import process as processes
from services.nodeagent.core.shard.record import ShardRecord
from services.nodeagent.settings import NodeAgentSettings
from services.nodeagent.stop_all import stop_all

E = TypeVar("E", bound=Event)

AGENT = """
import os, signal, sys, msgspec
from pathlib import Path
from libs.runtime import run
from services.nodeagent.app import build
from services.nodeagent.settings import NodeAgentSettings
settings = msgspec.json.decode(sys.argv[1], type=NodeAgentSettings, dec_hook=lambda kind, value: kind(value))
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
exec(sys.argv[2])
sys.exit(run.serve("nodeagent", settings, build, identity="node-" + settings.machine_id))
"""


class Box:
    """One machine. ``close`` leaves nothing of it running."""

    def __init__(self, bus: Bus, nats_url: str, folder: Path, **settings: Any) -> None:
        self.bus = bus
        given: dict[str, Any] = {
            "machine_id": "box",
            "nats_url": nats_url,
            "data_dir": folder,
            "engines": ("sim",),
            "stop_grace_s": 1.0,
            "sample_every_s": 0.2,
            "log_format": "console",
        }
        self.settings = NodeAgentSettings(**(given | settings))
        self.events: list[Event] = []
        self.samples: list[MachineSample] = []
        self.generation = 0
        self._agents: list[subprocess.Popen[bytes]] = []
        self._output = folder.parent / f"{folder.name}-agent.log"

    async def open(self) -> Box:
        async def happened(delivery: Delivery) -> None:
            assert isinstance(delivery.message, Event)
            self.events.append(delivery.message)

        async def measured(delivery: Delivery) -> None:
            if isinstance(delivery.message, MachineSample):
                self.samples.append(delivery.message)

        await self.bus.follow("EVENTS", ["llmgw.evt.>"], happened)
        await self.bus.follow("TELEMETRY", ["llmgw.tel.machine.>"], measured, start="new")
        return self

    async def want(self, *shards: ShardWanted, errands: tuple[ErrandWanted, ...] = ()) -> None:
        """Write the desired state, as the scheduler does."""
        self.generation += 1
        wanted = Desired(machine_id="box", generation=self.generation, shards=shards, errands=errands)
        await self.bus.view("desired", Desired).put("box", wanted)

    async def retire(self) -> None:
        """The scheduler knows the machine no more: nothing stands there for it."""
        await self.bus.view("desired", Desired).delete("box")

    def start_agent(self, prelude: str = "") -> subprocess.Popen[bytes]:
        """The agent in a process of its own. ``prelude`` runs in it first and may call ``die()`` somewhere."""
        text = msgspec.json.encode(self.settings, enc_hook=str).decode()
        with self._output.open("ab") as output:
            agent = subprocess.Popen(
                [sys.executable, "-c", AGENT, text, prelude],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._agents.append(agent)
        return agent

    def kill_agent(self) -> None:
        agent = self._agents[-1]
        agent.send_signal(signal.SIGKILL)
        agent.wait()

    def stop_agent(self) -> int:
        agent = self._agents[-1]
        agent.send_signal(signal.SIGTERM)
        return agent.wait(10)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def next(self, kind: type[E], count: int = 1, deadline_s: float = 15.0) -> E:
        """The ``count``-th event of a kind, waited for."""
        try:
            await eventually(lambda: len(self.of(kind)) >= count, deadline_s)
        except AssertionError as error:
            said = self._output.read_text()[-4000:] if self._output.exists() else ""
            raise AssertionError(f"no {kind.__name__} ({count}); there were {self.story()}\n{said}") from error
        return self.of(kind)[count - 1]

    def story(self) -> list[str]:
        return [type(event).__name__ for event in self.events if not isinstance(event, MachineRegistered)]

    def shard_events(self) -> list[ShardEvent]:
        return [event for event in self.events if isinstance(event, ShardEvent)]

    @property
    def files(self) -> ShardFiles:
        return ShardFiles(self.settings.data_dir)

    def records(self) -> dict[str, ShardRecord]:
        return self.files.read_all()

    def engine_pids(self) -> dict[str, list[int]]:
        """Live processes by shard id, however they are found."""
        return {
            shard_id: [e.pid for e in found] for shard_id, found in processes.marked(self.settings.data_dir).items()
        }

    async def close(self) -> None:
        for agent in self._agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        await stop_all(msgspec.structs.replace(self.settings, stop_grace_s=0.2))
        assert self.engine_pids() == {}


def alive(pid: int) -> bool:
    return processes.entry(pid) is not None


def signal_process(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
