"""A scripted node agent on a real bus, and schedulers to talk to."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from libs.bus import Bus, BusSettings, connect
from libs.bus.follow import Follower
from libs.events import Event
from libs.events.machine import EngineFound, MachineRegistered, MachineSample, ShardSample
from libs.events.shard import ShardAdopted, ShardLoading, ShardReady, ShardStarting, ShardStopped
from libs.events.views import Desired, ShardWanted
from libs.runtime.secrets import SealingKey
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.scheduler.app import Scheduler, build
from services.scheduler.settings import SchedulerSettings

SAMPLE_EVERY_S = 0.5
COMMAND = ("-m", "cli.main")


@asynccontextmanager
async def scheduler(
    server: NatsServer, directory: Path, instance: str = "s-1", **settings: Any
) -> AsyncIterator[Scheduler]:
    """A scheduler in this process, ready."""
    async with started(server, directory, instance, **settings) as service:
        await eventually(lambda: service.not_ready() == [])
        yield service


@asynccontextmanager
async def started(
    server: NatsServer, directory: Path, instance: str = "s-1", **settings: Any
) -> AsyncIterator[Scheduler]:
    """A scheduler in this process, whether it becomes ready or not."""
    own = await connect(BusSettings(url=server.url, identity="scheduler"))
    service = build(SchedulerSettings(data_dir=directory, instance=instance, **settings), own)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
        await own.close()


class SchedulerProcess:
    """A scheduler as `llmgw run scheduler`, to be killed."""

    def __init__(
        self, server: NatsServer, directory: Path, instance: str, program: Sequence[str] = COMMAND, **settings: object
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._out = (directory / f"{instance}.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, *program, "run", "scheduler"],
            env=os.environ
            | {
                "LLMGW_SCHEDULER_NATS_URL": server.url,
                "LLMGW_SCHEDULER_DATA_DIR": str(directory),
                "LLMGW_SCHEDULER_INSTANCE": instance,
            }
            | {f"LLMGW_SCHEDULER_{name.upper()}": str(value) for name, value in settings.items()},
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(15)
        self._out.close()


class Agent:
    """Registers a machine, speaks up every half second and does what its desired state says, at once."""

    def __init__(self, bus: Bus, machine_id: str, directory: Path, **facts: Any) -> None:
        self.bus = bus
        self.machine_id = machine_id
        self.sealing = SealingKey.load(directory / f"{machine_id}.key")
        self.facts = facts
        self.desired: Desired | None = None
        self.generations: list[int] = []
        self.shards: dict[str, ShardWanted] = {}
        self.starts = 0
        self.speaking = True
        self._watch: Follower | None = None
        self._talking: asyncio.Task[None] | None = None
        self._said = 0

    async def start(self) -> Agent:
        await self._say(
            MachineRegistered(
                **(
                    {
                        "at": datetime.now(UTC),
                        "machine_id": self.machine_id,
                        "address": "127.0.0.1",
                        "agent_version": "0.1.0",
                        "sealing_key": self.sealing.public_hex,
                        "os": "linux",
                        "arch": "x86_64",
                        "cpu_count": 8,
                        "memory_total_mb": 16_384,
                        "engines": (EngineFound(engine="sim", version="1", source="test"),),
                    }
                    | self.facts
                )
            )
        )
        self._talking = asyncio.create_task(self._talk())
        self._watch = await self.bus.view("desired", Desired).watch(self._on_desired, [self.machine_id])
        return self

    async def stop(self) -> None:
        if self._talking is not None:
            self._talking.cancel()
            await asyncio.gather(self._talking, return_exceptions=True)
        if self._watch is not None:
            await self._watch.stop()

    async def _talk(self) -> None:
        while True:
            if self.speaking:
                shards = tuple(ShardSample(shard_id=shard_id) for shard_id in self.shards)
                await self.bus.tell(MachineSample(at=datetime.now(UTC), machine_id=self.machine_id, shards=shards))
            await asyncio.sleep(SAMPLE_EVERY_S)

    async def _say(self, event: Event) -> None:
        self._said += 1
        await self.bus.append(event, cause=f"{self.machine_id}:{self._said}:{os.urandom(4).hex()}")

    async def _on_desired(self, key: str, desired: Desired | None) -> None:
        if desired is None or (self.desired is not None and desired.generation < self.desired.generation):
            return
        self.desired = desired
        self.generations.append(desired.generation)
        wanted = {shard.shard_id: shard for shard in desired.shards if not shard.draining}
        for shard_id in list(self.shards):
            if shard_id not in wanted:
                gone = self.shards.pop(shard_id)
                await self._say(ShardStopped(**self.about(gone), reason="no longer wanted here"))
        for shard_id, shard in wanted.items():
            if shard_id not in self.shards:
                self.starts += 1
                self.shards[shard_id] = shard
                await self._say(ShardStarting(**self.about(shard), engine=shard.engine))
                await self._say(ShardLoading(**self.about(shard), pid=1))
                await self._say(ShardReady(**self.about(shard), pid=1, url=self.url(shard), loaded_ms=5))

    def url(self, shard: ShardWanted) -> str:
        return f"http://{self.machine_id}/{shard.shard_id}"

    def about(self, shard: ShardWanted) -> dict[str, Any]:
        return {
            "at": datetime.now(UTC),
            "machine_id": self.machine_id,
            "shard_id": shard.shard_id,
            "replica_id": shard.replica_id,
            "model": shard.model,
            "generation": shard.generation,
        }

    async def fail(self, shard_id: str, event: type[Event], **said: Any) -> None:
        await self._say(event(**self.about(self.shards.pop(shard_id)), **said))

    async def adopt(self, shard_id: str) -> None:
        shard = self.shards[shard_id]
        await self._say(ShardAdopted(**self.about(shard), pid=1, url=self.url(shard), ready=True))
