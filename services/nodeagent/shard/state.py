"""One shard as it stands: its record on disk, what its processes use, and what is told of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from libs.events.machine import ShardSample
from libs.events.shard import ShardAdopted, ShardEvent, ShardReady
from libs.events.views import ShardWanted
from services.nodeagent.adapters.engine.process import Usage
from services.nodeagent.core.shard.engine_metrics import Readings
from services.nodeagent.core.shard.record import ENDED, PHASES, ShardRecord
from services.nodeagent.core.shard.weights import used_by

from .liveness import LivenessWatcher
from .node import Node

log = logging.getLogger(__name__)


class ShardState:
    """``changed`` is called whenever the shard's phase changed."""

    def __init__(self, node: Node, record: ShardRecord, changed: Callable[[], None]) -> None:
        self._node = node
        self._changed = changed
        self._watcher: LivenessWatcher | None = None
        self.record = record
        self.usage: Usage | None = None
        self.cpu_cores: float | None = None

    @property
    def wanted(self) -> ShardWanted:
        """What is wanted of it, as of when it was taken up."""
        return self.record.wanted

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more and that was reported."""
        return self.record.phase in ENDED

    def measured(self, usage: Usage | None, elapsed_s: float) -> None:
        """Take what its processes use, ``elapsed_s`` after the last time."""
        before, self.usage = self.usage, usage
        if usage is not None and before is not None and elapsed_s > 0:
            self.cpu_cores = max(0.0, usage.cpu_s - before.cpu_s) / elapsed_s
        else:
            self.cpu_cores = None

    def sample(self) -> ShardSample:
        """How it is doing. What is not known is left out."""
        usage, standing = self.usage, None
        if self.record.phase == "fetching":
            under_way = (self._node.fetching.standing(weights) for weights in used_by(self.wanted))
            standing = next((progress for progress in under_way if progress is not None), None)
        readings = (self._watcher.readings if self._watcher else None) or Readings()
        return ShardSample(
            shard_id=self.wanted.shard_id,
            rss_mb=usage.rss_mb if usage else None,
            cpu_cores=self.cpu_cores,
            running=readings.running,
            waiting=readings.waiting,
            kv_used=readings.kv_used,
            tokens_total=readings.tokens,
            phase=standing.phase if standing else PHASES.get(self.record.phase),
            done_bytes=standing.done_bytes if standing else None,
            total_bytes=standing.total_bytes if standing else None,
        )

    def _write(self, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)
        self._node.files.write(self.record)
        if "phase" in changes:
            log.info("shard %s is %s", self.wanted.shard_id, self.record.phase)
            self._changed()

    def _report(self, kind: type[ShardEvent], **fields: Any) -> None:
        record = self.record
        event = kind(
            at=datetime.now(UTC),
            machine_id=self._node.machine_id,
            shard_id=self.wanted.shard_id,
            replica_id=self.wanted.replica_id,
            model=self.wanted.model,
            generation=record.generation,
            **fields,
        )
        cause = f"{self.wanted.shard_id}:{record.generation}:{kind.__name__}:{record.run}"
        if kind in (ShardAdopted, ShardReady):
            # These may happen again to the same run, after another agent took it over.
            cause += f".{self._node.agent_run}"
        self._node.outbox.put(event, cause)
