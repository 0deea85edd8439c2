"""A site whose agents are all frozen at once, and one with too little to start everything on: nothing is taken away
from clients, nothing is placed anew, and everything comes up."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.bus import Bus, Delivery
from libs.events import Event
from libs.events.commands import DefineModel
from libs.events.node import NodeJoined, NodeLost
from libs.events.replica import ReplicaFailed, ReplicaLost, ReplicaPlaced, ReplicaReady
from libs.events.subjects import plane
from libs.events.system import PlacingPaused, PlacingResumed
from libs.events.views import KeyView
from libs.testing import eventually
from libs.testing.nats import NatsServer
from tests.integration.gateway.conftest import KEY, GatewayProcess
from tests.integration.scheduler.agent import COMMAND, SchedulerProcess
from tests.integration.scheduler.cluster import HASTENED
from tests.integration.scheduler.fleet import FleetProcess
from tests.unit.scheduler.harness import cpu_profile, model_spec

CLIENTS = 4


class Site:
    """Machines of a fleet in one process, a scheduler, a gateway and clients."""

    def __init__(self, fleet: FleetProcess, gateway: GatewayProcess, models: Sequence[str]) -> None:
        self.fleet, self.gateway, self.models = fleet, gateway, models
        self.log: list[Event] = []
        self.statuses: list[int] = []

    async def on_event(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, Event)
        self.log.append(delivery.message)

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.log)

    def serving(self) -> int:
        """Models with a replica that became ready and did not fail since."""
        ready: dict[str, str] = {}
        for event in self.log:
            if isinstance(event, ReplicaReady):
                ready[event.replica_id] = event.model
            elif isinstance(event, ReplicaFailed | ReplicaLost):
                ready.pop(event.replica_id, None)
        return len(set(ready.values()))

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """Clients ask for one model after the other."""
        draw = random.Random(1)

        async def client() -> None:
            while True:
                self.statuses.append(await asyncio.to_thread(self._ask, draw.choice(self.models)))
                await asyncio.sleep(0.05)

        clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
        try:
            yield
        finally:
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    def _ask(self, model: str) -> int:
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        url = f"http://127.0.0.1:{self.gateway.port}/v1/chat/completions"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, body.encode(), headers=headers), timeout=60
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refusal:
            return refusal.code

    @asynccontextmanager
    async def frozen(self, seconds: float) -> AsyncIterator[None]:
        """No agent moves."""
        os.kill(self.fleet.pid, signal.SIGSTOP)
        try:
            yield
            await asyncio.sleep(seconds)
        finally:
            os.kill(self.fleet.pid, signal.SIGCONT)


@asynccontextmanager
async def site(
    server: NatsServer, bus: Bus, directory: Path, nodes: int, models: int, program: Sequence[str]
) -> AsyncIterator[Site]:
    machines = f"machines: [{{id: n, copies: {nodes}, cores: 8, memory_mb: 16384}}]"
    names = [f"m{i:03}" for i in range(models)]
    scheduler = SchedulerProcess(server, directory, "s-1", program, starts_at_once=16)
    fleet = FleetProcess(server, directory / "fleet", machines, 0.5 if program is HASTENED else 2.0)
    gateway = GatewayProcess(directory / "gateway", server.url)
    found = Site(fleet, gateway, names)
    try:
        await bus.follow("EVENTS", [plane("evt")], found.on_event)
        view = KeyView(key_id="k", project="acme/lab/web", position=1)
        await bus.view("keys", KeyView).put(hashlib.sha256(KEY.encode()).hexdigest(), view)
        await eventually(lambda: found.count(NodeJoined) == nodes, 240)
        for name in names:
            await bus.command(DefineModel(spec=model_spec(name, 1, cpu_profile(memory_mb=100, parallel=64))))
        yield found
    finally:
        if gateway.running:
            gateway.stop()
        fleet.stop()
        scheduler.stop()


async def story(found: Site, models: int, frozen_s: float, record: Callable[[str, object], None]) -> None:
    began = time.monotonic()
    await eventually(lambda: found.serving() == models, 2400, what="all serve")
    record("seconds until all were ready", round(time.monotonic() - began))
    record("machines that fell silent meanwhile (their process had no CPU)", found.count(NodeLost))
    assert found.count(ReplicaLost) == 0
    assert found.count(ReplicaPlaced) == models
    await asyncio.to_thread(found.gateway.start, 60)
    async with found.asked():
        await eventually(lambda: len(found.statuses) > 20, 60)
        async with found.frozen(frozen_s):
            await eventually(lambda: found.count(PlacingPaused) > found.count(PlacingResumed), 60)
        asked = len(found.statuses)
        await eventually(lambda: len(found.statuses) > asked + 50, 60)
    record("requests", len(found.statuses))
    assert set(found.statuses) == {200}
    assert found.count(ReplicaLost) == found.count(ReplicaFailed) == 0
    assert found.count(ReplicaPlaced) == models
    assert found.serving() == models


@pytest.mark.timeout(240)
async def test_twenty_agents_frozen_at_once_take_nothing_away(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with site(nats_server, bus, tmp_path, 20, 30, HASTENED) as found:
        await story(found, 30, 4.0, record_property)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_two_hundred_nodes_come_up_on_too_little_and_are_frozen_for_twenty_seconds(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with site(nats_server, bus, tmp_path, 200, 300, COMMAND) as found:
        await story(found, 300, 20.0, record_property)
