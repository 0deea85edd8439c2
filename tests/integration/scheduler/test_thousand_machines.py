"""A thousand agents on a real bus: a machine that falls silent is replaced in time, and the bus has time to spare."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from libs.bus import Bus, Delivery
from libs.events.commands import DefineModel
from libs.events.machine import MachineSample
from libs.events.node import NodeLost
from libs.events.replica import ReplicaPlaced, ReplicaReady
from libs.events.subjects import pattern_of, plane
from libs.testing import eventually
from libs.testing.nats import NatsServer
from tests.unit.scheduler.harness import gpu_profile, model_spec

from .agent import SchedulerProcess
from .fleet import FleetProcess

GPUS = "{class: h100-80g, name: NVIDIA H100 80GB HBM3, memory_mb: 81559, nvlink: true, count: 8}"
HARDWARE = f"cores: 128, memory_mb: 1048576, gpus: [{GPUS}]"
SILENT_AFTER_S = 180
FLEET = f"""
machines:
  - {{id: gpu, copies: 998, {HARDWARE}}}
  - {{id: served-1, labels: {{kind: served}}, {HARDWARE}, faults: [{{after_s: {SILENT_AFTER_S}, kind: silent}}]}}
  - {{id: served-2, labels: {{kind: served}}, {HARDWARE}}}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_silent_machine_among_a_thousand(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    heard: dict[str, float] = {}
    happened: list[tuple[float, object]] = []

    async def on_sample(delivery: Delivery) -> None:
        if isinstance(delivery.message, MachineSample):
            heard[delivery.message.machine_id] = time.monotonic()

    async def on_event(delivery: Delivery) -> None:
        happened.append((time.monotonic(), delivery.message))

    await bus.follow("TELEMETRY", [pattern_of(MachineSample)], on_sample, start="new")
    await bus.follow("EVENTS", [plane("evt")], on_event, start="new")
    scheduler = SchedulerProcess(nats_server, tmp_path, "s-1")
    fleet = FleetProcess(nats_server, tmp_path / "fleet", FLEET)
    try:
        await eventually(lambda: len(heard) == 1000, 240)
        spec = model_spec("m", 2, gpu_profile(node_selector={"kind": "served"}))
        await bus.command(DefineModel(spec=spec))
        await eventually(lambda: sum(isinstance(e, ReplicaReady) for _, e in happened) == 2, 60)
        placed = [e for _, e in happened if isinstance(e, ReplicaPlaced)]
        assert {shard.machine_id for e in placed for shard in e.shards} == {"served-1", "served-2"}

        processes = {"bus": psutil.Process(_pid(nats_server)), "scheduler": psutil.Process(scheduler.pid)}
        before = {name: _cpu_s(process) for name, process in processes.items()}
        began = time.monotonic()
        await asyncio.sleep(20)
        shares = {name: (_cpu_s(p) - before[name]) / (time.monotonic() - began) for name, p in processes.items()}
        record_property("a thousand machines, CPU", {name: f"{share:.0%}" for name, share in shares.items()})

        def lost(machine_id: str) -> list[float]:
            return [t for t, e in happened if isinstance(e, NodeLost) and e.machine_id == machine_id]

        def moved() -> list[float]:
            return [t for t, e in happened if isinstance(e, ReplicaPlaced) and t >= lost("served-1")[0]]

        await eventually(lambda: lost("served-1"), SILENT_AFTER_S + 60)
        await eventually(moved, 20)
        took = moved()[0] - heard["served-1"]
        others = sum(isinstance(e, NodeLost) for _, e in happened) - 1
        record_property("from the last sample to the new place", f"{took:.1f} s")
        record_property("others that fell silent (their process had no CPU)", others)
        assert took <= 15
        assert shares["bus"] < 0.5
        assert shares["scheduler"] < 0.5
    finally:
        fleet.stop()
        scheduler.stop()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _pid(server: NatsServer) -> int:
    assert server.process is not None
    return server.process.pid
