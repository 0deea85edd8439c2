"""A thousand agents on a real bus: a machine that dies is replaced in time, and the bus has time to spare."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from libs.bus import Bus, Delivery
from libs.events import Event
from libs.events.commands import DefineModel
from libs.events.machine import MachineSample
from libs.events.node import NodeLost
from libs.events.replica import ReplicaPlaced, ReplicaReady
from libs.events.subjects import pattern_of, plane
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.scheduler.core.inputs.heartbeats import LOST_AFTER_MS
from tests.unit.scheduler.harness import gpu_profile, model_spec

from .agent import SchedulerProcess
from .fleet import FleetProcess

GPUS = "{class: h100-80g, name: NVIDIA H100 80GB HBM3, memory_mb: 81559, nvlink: true, count: 8}"
HARDWARE = f"cores: 128, memory_mb: 1048576, gpus: [{GPUS}]"
FLEET = f"""
machines:
  - {{id: gpu, copies: 998, {HARDWARE}}}
  - {{id: served-2, labels: {{kind: served}}, {HARDWARE}}}
"""
ALONE = f"machines: [{{id: served-1, labels: {{kind: served}}, {HARDWARE}}}]"


class Heartbeat:
    """What machines said and when the bus had it, which is what a leader could know."""

    def __init__(self) -> None:
        self.samples: dict[str, list[datetime]] = {}
        self.events: list[tuple[datetime, Event]] = []

    async def follow(self, bus: Bus) -> None:
        await bus.follow("TELEMETRY", [pattern_of(MachineSample)], self._on_sample, start="new")
        await bus.follow("EVENTS", [plane("evt")], self._on_event, start="new")

    async def _on_sample(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, MachineSample)
        self.samples.setdefault(delivery.message.machine_id, []).append(delivery.time)

    async def _on_event(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, Event)
        self.events.append((delivery.time, delivery.message))

    def of(self, kind: type[Event], **fields: object) -> list[tuple[datetime, Any]]:
        return [
            (at, event)
            for at, event in self.events
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
        ]

    def silent_ms(self, machine_id: str, at: datetime) -> float:
        """For how long the bus had had nothing from a machine."""
        return min((at - said) / timedelta(milliseconds=1) for said in self.samples[machine_id] if said <= at)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_machine_that_dies_among_a_thousand(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    heard = Heartbeat()
    await heard.follow(bus)
    scheduler = SchedulerProcess(nats_server, tmp_path, "s-1")
    fleet = FleetProcess(nats_server, tmp_path / "fleet", FLEET)
    alone = FleetProcess(nats_server, tmp_path / "alone", ALONE)
    try:
        await eventually(lambda: len(heard.samples) == 1000, 240)
        spec = model_spec("m", 2, gpu_profile(node_selector={"kind": "served"}))
        await bus.command(DefineModel(spec=spec))
        await eventually(lambda: len(heard.of(ReplicaReady)) == 2, 60)
        placed = [shard.machine_id for _, event in heard.of(ReplicaPlaced) for shard in event.shards]
        assert sorted(placed) == ["served-1", "served-2"]

        processes = {"bus": psutil.Process(_pid(nats_server)), "scheduler": psutil.Process(scheduler.pid)}
        before = {name: _cpu_s(process) for name, process in processes.items()}
        began = time.monotonic()
        await asyncio.sleep(20)
        shares = {name: (_cpu_s(p) - before[name]) / (time.monotonic() - began) for name, p in processes.items()}
        record_property("a thousand machines, CPU", {name: f"{share:.0%}" for name, share in shares.items()})

        alone.kill()
        await eventually(lambda: heard.of(NodeLost, machine_id="served-1"), 30)
        [(lost_at, _)] = heard.of(NodeLost, machine_id="served-1")
        await eventually(lambda: [at for at, _ in heard.of(ReplicaPlaced) if at >= lost_at], 20)
        moved_at = heard.of(ReplicaPlaced)[2][0]
        took_s = (moved_at - heard.samples["served-1"][-1]).total_seconds()
        record_property("from the last sample to the new place", f"{took_s:.1f} s")
        # A thousand agents in one process may be without CPU for seconds, and then they are silent. But nobody may be
        # lost of whom the bus had something in time.
        lost = [(event.at, event.machine_id) for _, event in heard.of(NodeLost) if event.machine_id != "served-1"]
        record_property("others that fell silent (their process had no CPU)", len(lost))
        wrongly = {name: heard.silent_ms(name, at) for at, name in lost if heard.silent_ms(name, at) < LOST_AFTER_MS}
        assert not wrongly
        assert took_s <= 15
        assert shares["bus"] < 0.5
        assert shares["scheduler"] < 0.5
    finally:
        alone.stop()
        fleet.stop()
        scheduler.stop()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _pid(server: NatsServer) -> int:
    assert server.process is not None
    return server.process.pid
