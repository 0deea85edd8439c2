"""On demand, by trial, stopped and started: on a real bus, with gateways and machines that speak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from libs.bus import Bus
from libs.events.commands import DefineModel, StartModel, StartSystem, StopModel, StopSystem, WakeModel
from libs.events.machine import FabricPort, Gpu
from libs.events.model import Canary, ModelSpec, Scaling
from libs.events.usage import GatewayRates, RequestRecord, UsageBatch
from libs.events.views import Route
from libs.testing import eventually
from libs.testing.nats import NatsServer
from tests.unit.scheduler.harness import cpu_profile, gpu_profile, model_spec

from .agent import Agent, scheduler


async def route(bus: Bus, model: str) -> Route:
    found = await bus.view("routes", Route).get(model)
    assert found is not None
    return found


async def serves(bus: Bus, model: str, count: int = 1) -> bool:
    found = await bus.view("routes", Route).get(model)
    return found is not None and len([e for e in found.endpoints if not e.draining]) == count


def on_demand(name: str) -> ModelSpec:
    spec = model_spec(name, 0, cpu_profile(cores=8, memory_mb=100))
    return msgspec.structs.replace(spec, scaling=Scaling(min=0, on_demand=True, evict_after_idle_s=0, min_lifetime_s=0))


@asynccontextmanager
async def gateway(bus: Bus, in_flight: dict[str, int]) -> AsyncIterator[None]:
    """Says twice a second what it has in flight."""

    async def talk() -> None:
        while True:
            await bus.tell(GatewayRates(at=datetime.now(UTC), gateway_id="gw-1", in_flight=dict(in_flight)))
            await asyncio.sleep(0.5)

    talking = asyncio.create_task(talk())
    try:
        yield
    finally:
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)


async def test_models_on_demand_take_turns_and_a_busy_one_keeps_its_room(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    in_flight: dict[str, int] = {}
    async with scheduler(nats_server, tmp_path), gateway(bus, in_flight):
        agent = await Agent(bus, "cpu-1", tmp_path).start()
        for name in ("a", "b"):
            await bus.command(DefineModel(spec=on_demand(name)))
        assert (await route(bus, "a")).on_demand
        await bus.command(WakeModel(model="a"))
        await eventually(lambda: serves(bus, "a"))
        [endpoint] = (await route(bus, "a")).endpoints
        in_flight[endpoint.replica_id] = 1
        await asyncio.sleep(1.0)  # until it is heard
        await bus.command(WakeModel(model="b"))
        await asyncio.sleep(7.0)  # longer than a leader waits to have heard every gateway
        assert await serves(bus, "a"), "a request is in flight"
        in_flight.clear()
        await eventually(lambda: serves(bus, "b"), deadline_s=15)
        assert await serves(bus, "a", 0)
        await agent.stop()


async def test_a_trial_is_judged_on_what_gateways_served(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    spec = model_spec("m", 1, cpu_profile(memory_mb=100), canary=Canary(percent=25, min_requests=5))
    async with scheduler(nats_server, tmp_path):
        agent = await Agent(bus, "cpu-1", tmp_path).start()
        await bus.command(DefineModel(spec=spec))
        await eventually(lambda: serves(bus, "m"))
        await bus.command(DefineModel(spec=msgspec.structs.replace(spec, context_length=2048)))
        await eventually(lambda: serves(bus, "m", 2))
        tried = await route(bus, "m")
        assert (tried.canary_percent, tried.context_length) == (25, 4096)
        [canary] = [e for e in tried.endpoints if e.canary]
        now = datetime.now(UTC)
        records = tuple(
            RequestRecord(
                request_id=f"req-{i}", opened_at=now, closed_at=now, key_id="k", project="o/t/p", model_asked="m",
                model="m", protocol="openai.chat", status="ok", replica_id=canary.replica_id, first_token_ms=10.0,
            )
            for i in range(6)
        )  # fmt: skip
        await bus.tell(UsageBatch(gateway_id="gw-1", offset=100, records=records))

        async def promoted() -> bool:
            found = await route(bus, "m")
            return found.context_length == 2048 and len(found.endpoints) == 1

        await eventually(promoted, deadline_s=15)
        await agent.stop()


async def test_stopping_a_model_and_the_system(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    async with scheduler(nats_server, tmp_path):
        agent = await Agent(bus, "cpu-1", tmp_path).start()
        for name in ("x", "y"):
            await bus.command(DefineModel(spec=model_spec(name, 1, cpu_profile(memory_mb=100))))
        await eventually(lambda: serves(bus, "y"))
        await bus.command(StopModel(model="x", reason="dear"))
        await eventually(lambda: serves(bus, "x", 0))
        assert ((await route(bus, "x")).stopped, (await route(bus, "y")).stopped) == ("model_stopped", None)
        await bus.command(StopSystem(reason="night"))
        await eventually(lambda: agent.shards == {})
        shown = await route(bus, "y")
        assert (shown.stopped, shown.stopped_reason) == ("system_stopped", "night")
        await bus.command(StartSystem())
        await bus.command(StartModel(model="x"))
        await eventually(lambda: serves(bus, "x"))
        await eventually(lambda: serves(bus, "y"))
        await agent.stop()


async def test_a_replica_over_two_machines(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> None:
    def gpus(name: str) -> tuple[Gpu, ...]:
        return tuple(
            Gpu(index=i, uuid=f"{name}-{i}", name="H100", gpu_class="h100-80g", memory_total_mb=81559) for i in range(2)
        )

    port = FabricPort(adapter="mlx5_0", port=1, link_layer="InfiniBand", state="active", network="sm:0x1")
    async with scheduler(nats_server, tmp_path):
        agents = [
            await Agent(bus, name, tmp_path, gpus=gpus(name), gpus_state="verified", ports=(port,)).start()
            for name in ("g1", "g2")
        ]
        await bus.command(DefineModel(spec=model_spec("big", 1, gpu_profile(gpus=2, nodes=2))))
        await eventually(lambda: serves(bus, "big"))
        ranks = {shard.rank: shard for agent in agents for shard in agent.shards.values()}
        assert set(ranks) == {0, 1}
        assert ranks[1].leader_port == ranks[0].leader_port > 0
        assert ranks[1].adapters == ("mlx5_0",)
        for agent in agents:
            await agent.stop()
