"""One machine's agent: what it is made of, in which order that starts, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

import msgspec

from libs.bus import Bus, Follower
from libs.events.views import Desired
from libs.runtime.secrets import SealingKey

from .adapters.disk.lock import DataFolder
from .adapters.disk.outbox import Outbox
from .adapters.disk.shard_files import ShardFiles
from .adapters.engine import process as processes
from .adapters.host import machine
from .adapters.weights.hub import Hub
from .engines.programs import Available
from .machine.discovery import agent_version, engines
from .machine.hardware import Hardware
from .machine.overrides import Overrides
from .operations import Operations
from .questions import AgentLines, Questions
from .registration import Registration
from .settings import NodeAgentSettings
from .shard.fetching import Fetching
from .shard.node import Node
from .shard.supervisor import Supervisor
from .telemetry import Telemetry

_LAST_FACTS_S = 2.0
"""How long a stopping agent waits for the log to take its last facts; the next agent sends what is left."""


class Shared(msgspec.Struct, frozen=True):
    """What several agents in one process have in common."""

    engines: dict[str, Available]
    lines: AgentLines


class NodeAgent:
    """Starting it takes engines over, stopping it lets go of them: neither touches one."""

    def __init__(self, settings: NodeAgentSettings, bus: Bus, shared: Shared | None = None) -> None:
        self._own_settings = settings
        self._overrides = Overrides(settings.data_dir)
        self._settings = settings = self._overrides.over(settings)
        self._bus = bus
        self._shared = shared
        self._hardware = Hardware(settings, agent_version())
        self._supervisor: Supervisor | None = None
        self._watch: Follower | None = None
        self._closers = AsyncExitStack()
        """What was started, the last to be stopped first."""
        self.again = asyncio.Event()
        """It is to be stopped and started anew."""

    @property
    def machine_id(self) -> str:
        """What this machine is called in the cluster."""
        return self._settings.machine_id

    async def start(self) -> None:
        """Raises FolderInUse while another agent works on the data folder, BadSecret for a sealing key that is none."""
        settings, data_dir, closers = self._settings, self._settings.data_dir, self._closers
        folder = DataFolder(data_dir)
        folder.acquire()
        closers.callback(folder.release)
        run = folder.next_run()
        lines = self._keep_lines()
        sealing_key = SealingKey.load(data_dir / "sealing.key")
        outbox = Outbox(data_dir / "outbox", self.again.set)
        closers.push_async_callback(outbox.stop, _LAST_FACTS_S)
        fetching = Fetching(data_dir / "weights", Hub(settings.hf_endpoint, settings.hf_token_file))
        closers.push_async_callback(fetching.close)
        closers.callback(self._hardware.stop)
        available, _, _ = await asyncio.gather(self._engines(), self._hardware.start(), fetching.look())
        node = Node(
            machine_id=settings.machine_id,
            agent_run=run,
            engines={name: found.engine for name, found in available.items()},
            versions={name: found.found.version for name, found in available.items()},
            bus=self._bus,
            files=ShardFiles(data_dir),
            outbox=outbox,
            processes=processes.Engines(data_dir),
            fetching=fetching,
            hardware=self._hardware,
            sealing_key=sealing_key,
            interface=machine.interface_of(self._hardware.address),
            stop_grace_s=settings.stop_grace_s,
            stuck_after_s=settings.stuck_after_s,
        )
        self._supervisor = supervisor = Supervisor(node)
        closers.push_async_callback(supervisor.close)
        registration = Registration(
            self._hardware, fetching, self._overrides, outbox, available, sealing_key.public_hex, run
        )
        registration.refresh()
        await supervisor.adopt(outbox.forgotten)
        outbox.start(self._bus)
        telemetry = Telemetry(
            settings.machine_id, self._bus, self._hardware, supervisor, fetching, settings.sample_every_s
        )
        telemetry.start(registration.refresh)
        closers.push_async_callback(telemetry.stop)

        def apply_overrides() -> None:
            """Put changed settings into effect. Engines are not touched."""
            self._settings = changed = self._overrides.over(self._own_settings)
            node.stop_grace_s, node.stuck_after_s = changed.stop_grace_s, changed.stuck_after_s
            telemetry.every_s = changed.sample_every_s
            self._hardware.change(changed)
            registration.refresh()

        operations = Operations(node, supervisor, data_dir, self._overrides, self.again.set, apply_overrides)
        closers.push_async_callback(operations.close)

        async def on_desired(machine_id: str, desired: Desired | None) -> None:
            await operations.on_desired(machine_id, desired)
            if desired is None:
                # The machine was retired while it was not heard: it joins anew.
                registration.repeat()

        self._watch = await self._bus.view("desired", Desired).watch(on_desired, keys=[settings.machine_id])
        closers.push_async_callback(self._watch.stop)
        questions = Questions(node, supervisor, lines, lambda: self._settings)
        await self._bus.answer("node", questions.answers, machine_id=settings.machine_id)

    def _keep_lines(self) -> AgentLines:
        """Where the last log lines of this process are kept; begins to keep them."""
        if self._shared is not None:
            return self._shared.lines
        lines = AgentLines()
        logging.getLogger().addHandler(lines)
        self._closers.callback(logging.getLogger().removeHandler, lines)
        return lines

    async def _engines(self) -> dict[str, Available]:
        return self._shared.engines if self._shared is not None else await engines(self._settings)

    async def stop(self) -> None:
        """Let go of engines, and stop; what the log has not taken within two seconds is left for the next agent."""
        await self._closers.aclose()

    def not_ready(self) -> list[str]:
        """Why it does not work yet, a sentence each; empty when it does."""
        if self._watch is None or not self._watch.caught_up.is_set():
            return ["what should run here has not been read from the bus yet"]
        return []
