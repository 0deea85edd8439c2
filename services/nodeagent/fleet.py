"""Many invented machines in one process: an agent for each, with a connection, an identity and files of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from libs.bus import Bus, BusSettings, connect, supervise
from libs.bus.identities import node_identity
from libs.simulated_machines import FleetMachine
from libs.tasks import end

from .agent import NodeAgent, Shared
from .fleet_file import of_machine, read
from .machine.discovery import engines
from .questions import AgentLines
from .settings import NodeAgentSettings

log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Agents that start at the same time."""

_RETRY_S = 5.0


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
        """Start every agent; which of them work is for ``not_ready`` to say. Raises Misconfigured."""
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
        """Let go of every engine, and stop the agents."""
        logging.getLogger().removeHandler(self._lines)
        await end(*self._running)

    def not_ready(self) -> list[str]:
        """How many machines do not work yet, as a sentence; empty when all do."""
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
