"""A small cluster on a real bus: invented machines with real agents and engines, a scheduler, gateways that only speak.

What takes minutes in a machine room takes moments here: ``LENGTHS`` says which lengths of time are shorter.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from libs.bus import Bus, BusSettings, Delivery, connect
from libs.bus.identities import node_identity
from libs.events import Command, Event, plane
from libs.events.commands import DefineModel, WakeModel
from libs.events.model import ModelSpec
from libs.events.replica import ReplicaPlaced
from libs.events.shard import ShardEvent, ShardFailed, ShardLoading, ShardStarting, ShardStopped
from libs.events.usage import GatewayRates, RequestRecord, UsageBatch
from libs.events.views import Endpoint, Route
from libs.simulated_machines import FleetMachine, SimulatedFabric, SimulatedFault, SimulatedGpus
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.nodeagent.agent import NodeAgent, Shared
from services.nodeagent.fleet_file import of_machine
from services.nodeagent.machine.discovery import engines
from services.nodeagent.questions import AgentLines
from services.nodeagent.settings import NodeAgentSettings
from services.nodeagent.stop_all import stop_all
from services.scheduler.core.state.evolve import evolve
from services.scheduler.core.state.state import State

LENGTHS: dict[str, object] = {
    "services.nodeagent.shard.shard_runner._DRAINED_AFTER_S": 0.2,
    "services.nodeagent.shard.shard_runner._LOOK_S": 0.05,
    "services.nodeagent.shard.shard_runner._PROBE_S": 0.1,
    "services.nodeagent.shard.gpu_memory.RANK_SETTLES_S": 0.3,
    "services.nodeagent.telemetry._LOOK_AGAIN_S": 0.2,
    "services.scheduler.adapters.gateways.SHORT_MS": 800,
    "services.scheduler.adapters.gateways.LONG_MS": 1500,
    "services.scheduler.adapters.listener.PULSE_EVERY_S": 0.2,
    "services.scheduler.adapters.listener.DEAF_AFTER_S": 1.5,
    "services.scheduler.core.reconciler.demand.SHORT_MS": 800,
    "services.scheduler.core.reconciler.demand.LONG_MS": 1500,
    "services.scheduler.core.reconciler.demand.HEARD_ALL_MS": 1000,
    "services.scheduler.core.inputs.heartbeats.LOST_AFTER_MS": 2300,
    "services.scheduler.core.placement.checks.LOST_AFTER_MS": 2300,
    "services.scheduler.core.reconciler.reconcile.LOST_AFTER_MS": 2300,
    "services.scheduler.core.reconciler.silence.LOST_AFTER_MS": 2300,
    "services.scheduler.core.reconciler.silence.QUIET_AFTER_MS": 1500,
    "services.scheduler.core.reconciler.silence.TOGETHER_MS": 12_000,
    "services.scheduler.core.reconciler.silence.WITHIN": timedelta(seconds=3),
    "services.scheduler.adapters.listener.QUIET_AFTER_MS": 1500,
    "services.scheduler.core.reconciler.lifecycle.BACK_OFF": timedelta(seconds=0.05),
}
WAIT_S = 30.0
"""For what takes a moment: a machine that runs many other tests may need longer."""

K = TypeVar("K", bound=Event)


def hasten() -> None:
    """Shorten the lengths for the rest of this process: for one that runs a scheduler of its own."""
    for name, value in LENGTHS.items():
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name
        setattr(import_module(module), attribute, value)


HASTENED = ("-c", "from tests.integration.scheduler.cluster import hasten; hasten(); import cli.main; cli.main.main()")
"""The program of a process in which they are shorter."""


class Machine:
    """One invented machine, its agent, and the engines that agent runs."""

    def __init__(self, settings: NodeAgentSettings, shared: Shared) -> None:
        self.settings = settings
        self._shared = shared
        self.agent: NodeAgent | None = None
        self._bus: Bus | None = None

    async def start(self) -> Machine:
        name = self.settings.machine_id
        self._bus = await connect(BusSettings(url=self.settings.nats_url, identity=node_identity(name)))
        self.agent = NodeAgent(self.settings, self._bus, self._shared)
        await self.agent.start()
        return self

    async def stop(self) -> None:
        """End the agent; engines go on."""
        agent, bus, self.agent, self._bus = self.agent, self._bus, None, None
        if agent is not None and bus is not None:
            await agent.stop()
            await bus.close()

    def happens(self, kind: Any, **about: Any) -> None:
        """A fault, or its end, now."""
        assert self.agent is not None
        invented = self.agent._hardware._invented
        assert invented is not None
        invented._due.append(SimulatedFault(after_s=0, kind=kind, **about))

    @property
    def engines(self) -> dict[str, int]:
        """Shard to the process of its engine, of those that run."""
        assert self.agent is not None
        assert self.agent._supervisor is not None
        runners = self.agent._supervisor.runners.values()
        return {
            runner.wanted.shard_id: runner.record.process.pid
            for runner in runners
            if not runner.ended and runner.record.process is not None
        }

    def kill(self, shard_id: str) -> None:
        os.kill(self.engines[shard_id], signal.SIGKILL)


class Gateway:
    """Says what it has in flight, what waits in it, and what it served."""

    def __init__(self, cluster: Cluster, name: str = "gw-1") -> None:
        self._cluster = cluster
        self._name = name
        self._offset = 0
        self.in_flight: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        self.last_used: dict[str, datetime] = {}

    async def speak(self) -> None:
        while True:
            await self._cluster.bus.tell(
                GatewayRates(
                    at=datetime.now(UTC),
                    gateway_id=self._name,
                    in_flight=dict(self.in_flight),
                    waiting=dict(self.waiting),
                    last_used=dict(self.last_used),
                )
            )
            await asyncio.sleep(0.2)

    async def request(self, model: str) -> None:
        """One request as a gateway treats it: it waits, and asks for the model, until there is a replica."""
        self.waiting[model] = self.waiting.get(model, 0) + 1
        asked = 0.0
        while not (there := self._cluster.endpoints(model)):
            if asked <= 0:
                await self._cluster.command(WakeModel(model=model))
                asked = 1.0
            await asyncio.sleep(0.05)
            asked -= 0.05
        self.in_flight[there[0].replica_id] = 1
        self.waiting[model] -= 1
        await asyncio.sleep(0.05)
        del self.in_flight[there[0].replica_id]
        self.last_used[model] = datetime.now(UTC)

    async def served(
        self, endpoint: Endpoint, model: str, requests: int, *, failed: int = 0, first_token_ms: float = 10.0
    ) -> None:
        """It served so many requests by this replica, and the last ``failed`` of them went wrong there."""
        now = datetime.now(UTC)
        self._offset += 1
        records = tuple(
            RequestRecord(
                request_id=f"req-{self._name}-{self._offset}-{i}", opened_at=now, closed_at=now, key_id="k",
                project="o/t/p", model_asked=model, model=model, protocol="openai.chat",
                status="ok" if i < requests - failed else "upstream_error", replica_id=endpoint.replica_id,
                first_token_ms=first_token_ms,
            )
            for i in range(requests)
        )  # fmt: skip
        await self._cluster.bus.tell(UsageBatch(gateway_id=self._name, offset=self._offset, records=records))


class Cluster:
    """What happens in it is heard; what it must never do is checked when it ends."""

    def __init__(self, server: NatsServer, bus: Bus, folder: Path) -> None:
        self.server = server
        self.bus = bus
        self.folder = folder
        self.machines: dict[str, Machine] = {}
        self.log: list[tuple[int, Event]] = []
        self.routes: dict[str, Route] = {}
        self.served: dict[str, list[int]] = defaultdict(list)
        """Model to how many of its replicas took requests, each time that changed."""
        self.strangers: set[str] = set()
        """Shards that run here though no scheduler asked for them."""
        self._shared: Shared | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> Cluster:
        await self.bus.follow("EVENTS", [plane("evt")], self._on_event)
        await self.bus.view("routes", Route).watch(self._on_route)
        return self

    async def _on_event(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, Event)
        self.log.append((delivery.sequence, delivery.message))

    async def _on_route(self, model: str, route: Route | None) -> None:
        if route is None:
            self.routes.pop(model, None)
        else:
            self.routes[model] = route
        self.served[model].append(len(self.endpoints(model)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(machine.stop() for machine in self.machines.values()))
        await asyncio.gather(*(stop_all(machine.settings) for machine in self.machines.values()))

    # what there is

    async def machine(
        self, machine_id: str, *, gpus: int = 0, fabric: str | None = None, cores: int = 8, **settings: Any
    ) -> Machine:
        """``fabric``: the physical one its adapter is on."""
        folder = self.folder / "machines"
        common = NodeAgentSettings(
            nats_url=self.server.url, data_dir=folder, engines=("sim",), stop_grace_s=2.0, sample_every_s=0.3
        )
        h100 = SimulatedGpus(gpu_class="h100-80g", memory_mb=81559, count=gpus, nvlink=True)
        invented = FleetMachine(
            id=machine_id,
            cores=cores,
            memory_mb=65_536,
            gpus=(h100,) if gpus else (),
            fabrics=(SimulatedFabric(name="ib", network=f"sm:{fabric}"),) if fabric is not None else (),
            **settings,
        )
        own = of_machine(common, invented)
        if self._shared is None:
            self._shared = Shared(await engines(own), AgentLines())
        machine = self.machines[machine_id] = await Machine(own, self._shared).start()
        return machine

    def gateway(self, name: str = "gw-1") -> Gateway:
        gateway = Gateway(self, name)
        self._tasks.append(asyncio.create_task(gateway.speak()))
        return gateway

    async def command(self, command: Command) -> None:
        outcome = await self.bus.command(command)
        assert outcome.status in ("done", "unchanged"), outcome

    async def define(self, *specs: ModelSpec) -> None:
        for spec in specs:
            await self.command(DefineModel(spec=spec))

    # what happens

    def endpoints(self, model: str) -> list[Endpoint]:
        """Of the replicas that take requests."""
        route = self.routes.get(model)
        return [one for one in route.endpoints if not one.draining] if route is not None else []

    async def serves(self, model: str, count: int = 1, *, on: set[str] | None = None) -> list[Endpoint]:
        """Wait until so many replicas take requests, all of them on these machines, and none is on its way out."""

        def there() -> bool:
            found, route = self.endpoints(model), self.routes.get(model)
            where = on is None or {one.machine_id for one in found} == on
            return len(found) == count and where and (route is None or len(route.endpoints) == count)

        await eventually(there, WAIT_S, what=f"{count} of {model} on {on or 'any machine'}")
        return self.endpoints(model)

    def events(self, kind: type[K], **fields: Any) -> list[K]:
        return [
            event
            for _, event in self.log
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
        ]

    async def happened(self, kind: type[K], count: int = 1, **fields: Any) -> K:
        """Wait for the so manieth event of a kind."""

        def there() -> K | None:
            found = self.events(kind, **fields)
            return found[count - 1] if len(found) >= count else None

        found = await eventually(there, WAIT_S, what=f"{count} {kind.__name__} {fields}")
        assert found is not None
        return found

    def placed(self, model: str) -> list[ReplicaPlaced]:
        return self.events(ReplicaPlaced, model=model)

    # what must never happen

    def check(self) -> None:
        known = [
            (at, event)
            for at, event in self.log
            if not (isinstance(event, ShardEvent) and event.shard_id in self.strangers)
        ]
        never_double(self.log)
        one_engine_on_a_gpu(known)
        started_once(known)


def never_double(log: list[tuple[int, Event]]) -> None:
    """No decision gave away a GPU that was still held."""
    state = State()
    for sequence, event in log:
        state = evolve(state, event, sequence)
        for machine_id, held in state.held.items():
            devices = [device for shard in held.values() for device in shard.devices]
            assert len(devices) == len(set(devices)), f"#{sequence}: a GPU of {machine_id} is held twice"


def one_engine_on_a_gpu(log: list[tuple[int, Event]]) -> None:
    """As machines tell it, no two engines ever were on one GPU, and none was anywhere but where it was placed."""
    given = {shard.shard_id: shard for _, e in log if isinstance(e, ReplicaPlaced) for shard in e.shards}
    on: dict[str, str] = {}
    for sequence, event in log:
        if isinstance(event, ShardLoading):
            assert event.machine_id == given[event.shard_id].machine_id
            for device in given[event.shard_id].devices:
                other = on.setdefault(device, event.shard_id)
                assert other == event.shard_id, f"#{sequence}: {event.shard_id} and {other} are both on {device}"
        elif isinstance(event, ShardFailed | ShardStopped):
            on = {device: shard_id for device, shard_id in on.items() if shard_id != event.shard_id}


def started_once(log: list[tuple[int, Event]]) -> None:
    """No replica was placed twice, and no shard was taken up twice."""
    placed = [event.replica_id for _, event in log if isinstance(event, ReplicaPlaced)]
    started = [event.shard_id for _, event in log if isinstance(event, ShardStarting)]
    assert len(placed) == len(set(placed)), "a replica was placed twice"
    assert len(started) == len(set(started)), "an engine started twice"
    wanted = {shard.shard_id for _, event in log if isinstance(event, ReplicaPlaced) for shard in event.shards}
    assert {event.shard_id for _, event in log if isinstance(event, ShardEvent)} <= wanted


@asynccontextmanager
async def running(server: NatsServer, bus: Bus, folder: Path) -> AsyncIterator[Cluster]:
    """A cluster without machines and without a scheduler yet."""
    cluster = await Cluster(server, bus, folder).open()
    try:
        yield cluster
    finally:
        await cluster.close()
    cluster.check()
