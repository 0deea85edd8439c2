"""What the agent keeps on disk about one shard: enough for another agent to take it over."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from libs.events import shard
from libs.events.views import ShardWanted

from .offload import Offload

Phase = Literal["accepted", "fetching", "spawning", "loading", "ready", "renewing", "stopping", "failed", "stopped"]

ENDED: frozenset[Phase] = frozenset({"failed", "stopped"})
"""Nothing of the shard runs any more and it has been reported; the record stays until it is no longer wanted."""

PHASES: dict[Phase, shard.Phase] = {
    "accepted": "starting",
    # Its weights are here; it waits for another engine to have started on its GPU.
    "fetching": "starting",
    "spawning": "starting",
    "loading": "loading",
    "ready": "ready",
    "renewing": "stopping",
    "stopping": "stopping",
}
"""What each is called outside, but for weights on their way."""


class EngineProcess(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's first process. Its number alone says nothing, numbers are used again: all three must match."""

    pid: int
    started: int
    """When the kernel started it, clock ticks after boot: wall-clock times shift when the clock is set."""
    boot: str
    """Which boot that was."""
    command: tuple[str, ...]
    """As the process table shows it."""


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One shard's state. It is written before the step it announces."""

    folder: str = ""
    """Which data folder it was written in (``device:inode``): in a copy of that folder its process is another's."""
    wanted: ShardWanted
    """As the scheduler wrote it; the engine's key in it is sealed."""
    generation: int
    """Of the desired state it was taken up for."""
    phase: Phase = "accepted"
    run: int = 1
    """How often its engine was started: more than once when an agent died first, its port was taken, or somebody
    asked for it."""
    renewal: int = 0
    """Number of the errand that last asked for its engine to start anew."""
    renewed: int = 0
    """Number of the errand for which its engine did."""
    command: tuple[str, ...] = ()
    """Of the engine that runs or is about to."""
    process: EngineProcess | None = None
    url: str = ""
    offload: Offload = msgspec.field(default=Offload(), name="layout")
    """Where its engine computes."""
    fetched_bytes: int = 0
    spawned_at: datetime | None = None
    reason: str = ""
    exit_code: int | None = None
