"""Stopping every engine of a data folder on purpose, with no agent running: what ``llmgw down`` does last."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from libs.events.shard import ShardStopped

from .adapters.disk.lock import DataFolder
from .adapters.disk.outbox import Outbox
from .adapters.disk.shard_files import ShardFiles
from .adapters.engine import process as processes
from .core.shard.record import ENDED
from .fleet_file import of_machine, read
from .settings import NodeAgentSettings

log = logging.getLogger(__name__)

REASON = "the engines of this machine were stopped by hand"


async def stop_all(settings: NodeAgentSettings) -> list[str]:
    """Stop every engine the folder knows of, and whatever else carries its mark; returns the shards stopped.

    The next agent on the folder tells the log. A full disk keeps none running. Raises FolderInUse while an agent
    runs: it would take the ends for failures; StillRunning when a process survived SIGKILL; Misconfigured for the
    fleet file.
    """
    if settings.fleet is not None:
        ends = [await stop_all(of_machine(settings, machine)) for machine in read(settings.fleet)]
        return [shard_id for stopped in ends for shard_id in stopped]
    if not settings.data_dir.is_dir():
        return []
    with DataFolder(settings.data_dir):
        return await _stop_all(settings, settings.data_dir)


async def _stop_all(settings: NodeAgentSettings, data_dir: Path) -> list[str]:
    files, engines, outbox = ShardFiles(data_dir), processes.Engines(data_dir), Outbox(data_dir / "outbox")
    records = {shard_id: record for shard_id, record in files.read_all().items() if record.phase not in ENDED}
    shard_ids = sorted({*records, *await asyncio.to_thread(processes.marked, data_dir)})

    async def stop(shard_id: str) -> None:
        record = records.get(shard_id)
        await engines.stop(shard_id, record.process if record else None, settings.stop_grace_s)
        if record is None:
            return
        stopped = ShardStopped(
            at=datetime.now(UTC),
            machine_id=settings.machine_id,
            shard_id=shard_id,
            replica_id=record.wanted.replica_id,
            model=record.wanted.model,
            generation=record.generation,
            reason=REASON,
        )
        try:
            outbox.put(stopped, f"{shard_id}:{record.generation}:ShardStopped:{record.run}")
            files.write(msgspec.structs.replace(record, phase="stopped", reason=REASON))
        except OSError as error:
            # It is stopped all the same; the next agent finds it gone and says that it failed.
            log.error("that %s was stopped cannot be written down: %s", shard_id, error)

    await asyncio.gather(*(stop(shard_id) for shard_id in shard_ids))
    return shard_ids
