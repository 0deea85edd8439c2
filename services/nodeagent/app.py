"""The node agent, wired."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from libs.bus import Bus, Follower
from libs.events.commands import Problem
from libs.events.machine import MachineRegistered
from libs.events.questions import AskDoctor, AskFabricMap, AskHeaders, AskLogs, DoctorAnswer, FabricMap
from libs.events.refusal import Refused
from libs.events.views import Desired, ShardWanted
from libs.runtime.secrets import SealingKey

from .adapters.disk.lock import DataFolder
from .adapters.disk.outbox import Outbox
from .adapters.disk.shard_files import ShardFiles
from .adapters.engine import process as processes
from .adapters.host import machine
from .adapters.host.fabric import ScanFailed
from .adapters.weights.hub import Hub
from .core.shard import capacity
from .engines.programs import Available
from .machine.diagnostics import examine, gather
from .machine.discovery import agent_version, engines
from .machine.hardware import Hardware
from .machine.overrides import Changes
from .operations import Errands
from .questions import AgentLines, LogLines
from .settings import NodeAgentSettings
from .shard.fetching import Fetching
from .shard.node import Node
from .shard.supervisor import Supervisor
from .shard.weight_headers import Headers
from .stop_all import stop_all
from .telemetry import Telemetry

if TYPE_CHECKING:
    from .fleet import Fleet

log = logging.getLogger(__name__)

_LAST_FACTS_S = 2.0
"""How long a stopping agent waits for the log to take its last facts; the next agent sends what is left."""


class Shared(msgspec.Struct, frozen=True):
    """What several agents in one process have in common."""

    engines: dict[str, Available]
    lines: AgentLines


class NodeAgent:
    """The service. Starting it takes engines over, stopping it lets go of them: neither touches one."""

    def __init__(self, settings: NodeAgentSettings, bus: Bus, shared: Shared | None = None) -> None:
        self._changes = Changes(settings.data_dir)
        self._own_settings = settings
        self._settings = settings = self._changes.over(settings)
        self._bus = bus
        self._shared = shared
        self._folder = DataFolder(settings.data_dir)
        self._hardware = Hardware(settings, agent_version())
        self._lines = shared.lines if shared is not None else AgentLines()
        self._supervisor: Supervisor | None = None
        self._telemetry: Telemetry | None = None
        self._fetching: Fetching | None = None
        self._outbox: Outbox | None = None
        self._watch: Follower | None = None
        self._registered: MachineRegistered | None = None
        self._look: Callable[[], None] = lambda: None
        self._registrations = 0
        self._run = 0
        self._node: Node | None = None
        self._errands: Errands | None = None
        self.again = asyncio.Event()
        """It is to be stopped and started anew."""

    @property
    def machine_id(self) -> str:
        return self._settings.machine_id

    async def start(self) -> None:
        settings, data_dir = self._settings, self._settings.data_dir
        self._folder.take()
        if self._shared is None:
            logging.getLogger().addHandler(self._lines)
        self._run = self._folder.next_run()
        sealing_key = SealingKey.load(data_dir / "sealing.key")
        self._outbox = Outbox(data_dir / "outbox", self.again.set)
        self._fetching = Fetching(data_dir / "weights", Hub(settings.hf_endpoint, settings.hf_token_file))
        found, _, _ = await asyncio.gather(self._engines(), self._hardware.start(), self._fetching.look())
        self._node = node = Node(
            machine_id=settings.machine_id,
            host=self._hardware.address,
            cpu_count=self._hardware.cpu_count,
            agent_run=self._run,
            engines={name: engine for name, (engine, _) in found.items()},
            versions={name: there.version for name, (_, there) in found.items()},
            bus=self._bus,
            files=ShardFiles(data_dir),
            outbox=self._outbox,
            processes=processes.Engines(data_dir),
            fetching=self._fetching,
            sealing_key=sealing_key,
            room=self._room,
            gpus=lambda: {gpu.uuid: gpu for gpu in self._hardware.gpus.gpus},
            holders=lambda: {} if self._hardware.simulated else self._hardware.holders(),
            gpu_used_mb=self._hardware.gpu_used_mb,
            ports=lambda: self._hardware.ports,
            interface=machine.interface_of(self._hardware.address),
            stop_grace_s=settings.stop_grace_s,
            stuck_after_s=settings.stuck_after_s,
        )
        self._supervisor = Supervisor(node)
        there = tuple(one for _, one in found.values())
        self._look = lambda: self._register(self._hardware.registered(sealing_key.public_hex, there))
        self._look()
        await self._supervisor.adopt(self._outbox.forgotten)
        self._outbox.start(self._bus)
        self._telemetry = Telemetry(
            settings.machine_id, self._bus, self._hardware, self._supervisor, self._fetching, settings.sample_every_s
        )
        self._telemetry.start(self._look)
        self._errands = Errands(node, self._supervisor, data_dir, self._changes, self.again.set, self._apply)
        view = self._bus.view("desired", Desired)
        self._watch = await view.watch(self._on_desired, keys=[settings.machine_id])
        answers: dict[Any, Any] = {
            AskLogs: LogLines(node.files, self._lines).answer,
            AskFabricMap: self._map_fabric,
            AskDoctor: self._examine,
            AskHeaders: Headers(Hub(settings.hf_endpoint, settings.hf_token_file)).answer,
        }
        await self._bus.answer("node", answers, machine_id=settings.machine_id)

    async def _engines(self) -> dict[str, Available]:
        return self._shared.engines if self._shared is not None else await engines(self._settings)

    async def stop(self) -> None:
        if self._telemetry is not None:
            await self._telemetry.stop()
        if self._watch is not None:
            await self._watch.stop()
        if self._errands is not None:
            await self._errands.close()
        if self._supervisor is not None:
            await self._supervisor.close()
        if self._fetching is not None:
            await self._fetching.close()
        if self._outbox is not None:
            await self._outbox.stop(_LAST_FACTS_S)
        self._hardware.stop()
        if self._shared is None:
            logging.getLogger().removeHandler(self._lines)
        self._folder.release()

    def not_ready(self) -> list[str]:
        if self._watch is None or not self._watch.caught_up.is_set():
            return ["what should run here has not been read from the bus yet"]
        return []

    async def _examine(self, question: AskDoctor) -> DoctorAnswer:
        supervisor = self._supervisor
        assert supervisor is not None
        ours = frozenset(pid for life in supervisor.lives.values() if life.usage is not None for pid in life.usage.pids)
        there = tuple(sorted(supervisor.engines))
        known = {gpu.uuid: gpu for gpu in self._hardware.gpus.gpus}
        return examine(await asyncio.to_thread(gather, self._hardware.here, self._settings, there, ours, known))

    async def _map_fabric(self, question: AskFabricMap) -> FabricMap:
        here = [port.adapter for port in self._hardware.ports if port.link_layer == "InfiniBand"]
        if question.adapter not in here:
            message = (
                f"{question.adapter!r} is no InfiniBand adapter of this machine; there is: {', '.join(here) or 'none'}"
            )
            raise Refused([Problem(path="adapter", message=message)])
        try:
            return await asyncio.to_thread(self._hardware.map_fabric, question.adapter, question.port)
        except ScanFailed as error:
            raise Refused([Problem(path="adapter", message=str(error))]) from None

    def _room(self, wanted: ShardWanted) -> str | None:
        supervisor, hardware = self._supervisor, self._hardware
        assert supervisor is not None
        return capacity.refusal(
            wanted,
            available_mb=hardware.available_mb(supervisor.reserved_mb(wanted)),
            promised_mb=0 if hardware.simulated else supervisor.promised_mb(wanted),
            gpus=hardware.gpus.gpus,
            foreign={uuid: self._foreign(held) for uuid, held in hardware.holders().items() if uuid in wanted.devices},
        )

    def _foreign(self, held: dict[int, int | None]) -> dict[int, int | None]:
        unmarked = {pid: mb for pid, mb in held.items() if not processes.is_engine(pid, self._settings.data_dir)}
        if not unmarked:
            return {}
        # An engine's workers that gave themselves a title wrote it over their environment, mark and all.
        assert self._supervisor is not None
        ours = self._supervisor.pids()
        return {pid: mb for pid, mb in unmarked.items() if pid not in ours}

    async def _on_desired(self, machine_id: str, desired: Desired | None) -> None:
        assert self._errands is not None
        await self._errands.on_desired(machine_id, desired)
        if desired is None:
            # The machine was retired while it was not heard: it joins anew.
            self._registered = None
            self._look()

    def _apply(self) -> None:
        """Put changed settings into effect. Engines are not touched."""
        self._settings = settings = self._changes.over(self._own_settings)
        assert self._node is not None
        assert self._telemetry is not None
        self._node.stop_grace_s, self._node.stuck_after_s = settings.stop_grace_s, settings.stuck_after_s
        self._telemetry.every_s = settings.sample_every_s
        self._hardware.change(settings)
        self._look()

    def _register(self, machine: MachineRegistered) -> None:
        """Say what the machine is, if that was not said yet."""
        assert self._fetching is not None
        machine = msgspec.structs.replace(machine, weights=self._fetching.here, changed_settings=self._changes.kept)
        said = self._registered
        if said is not None and msgspec.structs.replace(said, at=machine.at) == machine:
            return
        self._registered = machine
        self._registrations += 1
        assert self._outbox is not None
        self._outbox.put(machine, f"machine.{machine.machine_id}:registered:{self._run}.{self._registrations}")


def build(settings: NodeAgentSettings, bus: Bus) -> NodeAgent | Fleet:
    if settings.fleet is None:
        return NodeAgent(settings, bus)
    from .fleet import Fleet

    return Fleet(settings, bus.fail)


__all__ = ["NodeAgent", "build", "stop_all"]
