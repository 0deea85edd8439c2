"""What runs on this machine, brought to what should run."""

from __future__ import annotations

import asyncio
import logging

from libs.events.views import Desired, ShardWanted
from services.nodeagent.adapters.engine import process as processes
from services.nodeagent.adapters.engine.output import trim
from services.nodeagent.adapters.engine.process import StillRunning
from services.nodeagent.core.shard.capacity import outstanding_mb, refusal
from services.nodeagent.core.shard.reconcile import (
    Forget,
    Start,
    Stop,
    newer,
    reconcile,
)
from services.nodeagent.core.shard.record import EngineProcess, ShardRecord

from .node import Node
from .shard_runner import ShardRunner

log = logging.getLogger(__name__)


class Supervisor:
    """Holds a ``ShardRunner`` for every record on disk and starts and stops them as the desired state says."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._desired: Desired | None = None
        self._closing = False
        self._scheduled = False
        self.runners: dict[str, ShardRunner] = {}

    async def adopt(self, unsaid: bool) -> None:
        """Take over what an earlier agent left: before anything is wanted, and whatever the bus does.

        ``unsaid``: the log may know nothing of it, so that ends are told again too.
        """
        records = self._node.files.read_all()
        left = await asyncio.to_thread(processes.marked, self._node.files.data_dir)
        for shard_id, record in records.items():
            runner = self.runners[shard_id] = ShardRunner(self._node, record, self.soon, self.lacking)
            if record.phase == "stopping":
                runner.go_on_stopping()
            elif not runner.ended:
                runner.adopt()
            elif unsaid:
                runner.say_end_again()
        for shard_id in left:
            if shard_id not in records or self.runners[shard_id].ended:
                log.warning("processes of shard %s are left and no record of it: they are stopped", shard_id)
                try:
                    await self._node.processes.stop(shard_id, None, self._node.stop_grace_s)
                except (OSError, StillRunning) as error:
                    log.error("what is left of shard %s: %s", shard_id, error)

    async def on_desired(self, key: str, desired: Desired | None) -> None:
        """The scheduler's word. Nothing said (the view lost its entry) changes nothing."""
        if desired is None:
            log.warning("the desired state of %s vanished from the bus; what runs stays as it is", key)
            return
        if newer(self._desired, desired):
            self._desired = desired
            self.soon()

    @property
    def desired(self) -> Desired | None:
        """What should run here; None: nobody has said."""
        return self._desired

    async def close(self) -> None:
        """Let go of every engine without touching it."""
        self._closing = True
        await asyncio.gather(*(runner.let_go() for runner in self.runners.values()))

    def promised_mb(self, but: ShardWanted) -> int:
        """Memory other shards were promised and have not taken yet."""
        held = ((runner.wanted.memory_mb, runner.usage.rss_mb if runner.usage else 0) for runner in self._housed(but))
        return outstanding_mb(held)

    def reserved_mb(self, but: ShardWanted) -> int:
        """Memory other shards reserved."""
        return sum(runner.wanted.memory_mb for runner in self._housed(but))

    def lacking(self, wanted: ShardWanted) -> str | None:
        """What this machine lacks for a shard at this moment, as a sentence, or None."""
        hardware = self._node.hardware
        holders = {uuid: held for uuid, held in hardware.holders().items() if uuid in wanted.devices}
        return refusal(
            wanted,
            available_mb=hardware.available_mb(self.reserved_mb(wanted)),
            promised_mb=0 if hardware.simulated else self.promised_mb(wanted),
            gpus=hardware.gpus.gpus,
            foreign={uuid: self._foreign(held) for uuid, held in holders.items()},
        )

    def _foreign(self, held: dict[int, int | None]) -> dict[int, int | None]:
        """Of processes that hold memory on a GPU those that are none of the engines here."""
        data_dir = self._node.files.data_dir
        unmarked = {pid: mb for pid, mb in held.items() if not processes.is_engine(pid, data_dir)}
        if not unmarked:
            return {}
        # An engine's workers that gave themselves a title wrote it over their environment, mark and all.
        ours = self.pids()
        return {pid: mb for pid, mb in unmarked.items() if pid not in ours}

    def _housed(self, but: ShardWanted) -> list[ShardRunner]:
        """Shards that were given room here, except one."""
        return [
            runner
            for runner in self.runners.values()
            if not runner.ended and runner.record.phase != "accepted" and runner.wanted.shard_id != but.shard_id
        ]

    def _processes(self) -> dict[str, EngineProcess]:
        return {
            shard_id: runner.record.process
            for shard_id, runner in self.runners.items()
            if not runner.ended and runner.record.process is not None
        }

    def pids(self) -> frozenset[int]:
        """Every process of the engines here, looked up now."""
        return frozenset().union(*(usage.pids for usage in processes.usages(self._processes()).values()))

    def measured_pids(self) -> frozenset[int]:
        """Every process of the engines here, as of the last measurement."""
        running = [runner.usage for runner in self.runners.values() if not runner.ended and runner.usage is not None]
        return frozenset(pid for usage in running for pid in usage.pids)

    async def measure(self, elapsed_s: float) -> None:
        """Read what every engine uses."""
        running = self._processes()
        usages = await asyncio.to_thread(processes.usages, running) if running else {}
        for shard_id, runner in self.runners.items():
            runner.measured(usages.get(shard_id), elapsed_s)
        for shard_id in running:
            trim(self._node.files.output(shard_id))
        # What could not be done for want of disk or memory is tried again.
        self.soon()

    def soon(self) -> None:
        """Compare what should run with what runs, once, after whatever is being done now."""
        if not self._scheduled and not self._closing:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._reconcile)

    def _reconcile(self) -> None:
        self._scheduled = False
        if self._closing:
            return
        for action in reconcile(self._desired, {shard_id: runner.record for shard_id, runner in self.runners.items()}):
            if isinstance(action, Stop):
                self.runners[action.shard_id].stop(action.reason)
            elif isinstance(action, Forget):
                del self.runners[action.shard_id]
                self._node.files.forget(action.shard_id)
            else:
                self._start(action)
        for shard in self._desired.shards if self._desired else ():
            if shard.draining and shard.shard_id in self.runners:
                self.runners[shard.shard_id].drain()

    def _start(self, action: Start) -> None:
        shard_id = action.wanted.shard_id
        earlier = self.runners.get(shard_id)
        record = ShardRecord(
            wanted=action.wanted,
            generation=action.generation,
            run=earlier.record.run + 1 if earlier is not None else 1,
        )
        self._node.files.write(record)
        runner = self.runners[shard_id] = ShardRunner(self._node, record, self.soon, self.lacking)
        runner.begin()
