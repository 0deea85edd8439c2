"""Many invented machines in one process: an agent for each, with a connection, an identity and files of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import yaml

from libs.bus import Bus, BusSettings, connect, supervise
from libs.bus.identities import node_identity
from libs.bus.transport import Misconfigured
from libs.runtime.yaml_values import scalars, two_readings
from libs.tasks import end

from .agent import NodeAgent, Shared
from .machine.discovery import engines
from .questions import AgentLines
from .settings import NodeAgentSettings
from .simulation.settings import FleetMachine, SimulatedMachine

log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Agents that start at the same time."""

_RETRY_S = 5.0

_MACHINE = msgspec.structs.fields(SimulatedMachine)


class Fleet:
    """The service when the settings name a fleet file."""

    def __init__(self, settings: NodeAgentSettings, fail: Callable[[str], None]) -> None:
        self._settings = settings
        self._fail = fail
        self._agents: dict[str, NodeAgent] = {}
        self._lines = AgentLines()
        self._running: list[asyncio.Task[None]] = []
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._count = 0

    async def start(self) -> None:
        assert self._settings.fleet is not None
        machines = read(self._settings.fleet)
        self._count = len(machines)
        logging.getLogger().addHandler(self._lines)
        shared = Shared(await engines(of_machine(self._settings, machines[0])), self._lines)
        self._running = [
            supervise(partial(self._keep, machine, shared), name=machine.id, fail=self._fail) for machine in machines
        ]

    async def _keep(self, machine: FleetMachine, shared: Shared) -> None:
        """One machine's agent, begun anew whenever its connection broke beyond repair."""
        settings = of_machine(self._settings, machine)
        identity = node_identity(settings.machine_id)
        while True:
            bus: Bus | None = None
            agent: NodeAgent | None = None
            try:
                async with self._gate:
                    bus = await connect(
                        BusSettings(settings.nats_url, settings.credentials, identity, settings.instance)
                    )
                    agent = NodeAgent(settings, bus, shared)
                    await agent.start()
                    self._agents[machine.id] = agent
                if await _first(bus.failed, agent.again) is bus.failed:
                    log.error("%s begins anew: %s", machine.id, bus.failure)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.error("%s could not start, it is tried again: %s", machine.id, error)
                await asyncio.sleep(_RETRY_S)
            finally:
                self._agents.pop(machine.id, None)
                if agent is not None:
                    await agent.stop()
                if bus is not None:
                    await bus.close()

    async def stop(self) -> None:
        logging.getLogger().removeHandler(self._lines)
        await end(*self._running)

    def not_ready(self) -> list[str]:
        ready = sum(not agent.not_ready() for agent in self._agents.values())
        if ready == self._count:
            return []
        return [f"{self._count - ready} of {self._count} machines have not read what should run there yet"]


async def _first(*events: asyncio.Event) -> asyncio.Event:
    """The one of ``events`` that comes first."""
    waiting = {asyncio.create_task(event.wait()): event for event in events}
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return waiting[done.pop()]
    finally:
        for task in waiting:
            task.cancel()


def read(file: Path) -> list[FleetMachine]:
    """The machines of a fleet file; what else it declares is for ``llmgw apply``. Raises Misconfigured."""
    found: list[FleetMachine] = []
    try:
        text = file.read_text()
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            for one in scalars(node):
                if not one.tag.endswith(":bool") and (differs := two_readings(one)) is not None:
                    raise Misconfigured(f"the fleet file {file}:{one.start_mark.line + 1}: {differs}")
        for document in yaml.safe_load_all(text):
            found += msgspec.convert((document or {}).get("machines") or [], list[FleetMachine])
    except OSError as error:
        raise Misconfigured(f"the fleet file {file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise Misconfigured(f"the fleet file {file}: {error}") from None
    machines = [one for machine in found for one in _copies(machine)]
    ids = [machine.id for machine in machines]
    twice = sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise Misconfigured(f"the fleet file {file}: the machine {twice[0]!r} stands twice: ids must differ")
    if not machines:
        raise Misconfigured(f"the fleet file {file} describes no machine")
    return machines


def _copies(machine: FleetMachine) -> list[FleetMachine]:
    if machine.copies == 1:
        return [machine]
    numbers = range(1, machine.copies + 1)
    return [msgspec.structs.replace(machine, id=f"{machine.id}-{number}", copies=1) for number in numbers]


def of_machine(settings: NodeAgentSettings, machine: FleetMachine) -> NodeAgentSettings:
    """The settings of one machine's agent."""
    credentials = settings.credentials
    return msgspec.structs.replace(
        settings,
        fleet=None,
        machine_id=machine.id,
        labels=settings.labels | machine.labels,
        data_dir=settings.data_dir / machine.id,
        credentials=credentials.with_name(f"{node_identity(machine.id)}.nk") if credentials is not None else None,
        simulated=SimulatedMachine(**{field.name: getattr(machine, field.name) for field in _MACHINE}),
    )
