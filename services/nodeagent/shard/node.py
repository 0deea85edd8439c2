"""What every shard of a machine has in common."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec

from libs.bus import Bus
from libs.events.machine import Gpu
from libs.events.shard import Phase
from libs.runtime.secrets import SealingKey
from services.nodeagent.adapters.disk.outbox import Outbox
from services.nodeagent.adapters.disk.shard_files import ShardFiles
from services.nodeagent.adapters.engine.process import Engines
from services.nodeagent.core.engines import Engine
from services.nodeagent.machine.hardware import Hardware

from .fetching import Fetching


class Failure(Exception):
    """The shard will not serve."""

    def __init__(self, phase: Phase, reason: str, exit_code: int | None = None) -> None:
        super().__init__(reason)
        self.phase: Phase = phase
        self.reason = reason
        self.exit_code = exit_code


class Node(msgspec.Struct, kw_only=True):
    """What every shard of this machine works with."""

    machine_id: str
    agent_run: int
    """How often an agent has started on this data folder."""
    engines: dict[str, Engine]
    versions: dict[str, str]
    bus: Bus
    files: ShardFiles
    outbox: Outbox
    processes: Engines
    fetching: Fetching
    hardware: Hardware
    sealing_key: SealingKey
    interface: str | None
    """The network interface that holds the machine's address."""
    stop_grace_s: float
    stuck_after_s: float
    device_locks: dict[str, asyncio.Lock] = {}

    def gpus(self) -> dict[str, Gpu]:
        """The GPUs as they are now, by UUID."""
        return {gpu.uuid: gpu for gpu in self.hardware.gpus.gpus}

    def holders(self) -> dict[str, dict[int, int | None]]:
        """GPU UUID to the processes that hold memory on it, MB each; a GPU that does not say is absent. On invented
        GPUs engines hold nothing."""
        return {} if self.hardware.simulated else self.hardware.holders()

    @contextlib.asynccontextmanager
    async def devices(self, uuids: tuple[str, ...]) -> AsyncIterator[None]:
        """One engine at a time starts on a GPU: they size themselves by the memory they find free on it."""
        async with contextlib.AsyncExitStack() as stack:
            for uuid in sorted(uuids):  # in one order everywhere, so that two can never wait for each other
                await stack.enter_async_context(self.device_locks.setdefault(uuid, asyncio.Lock()))
            yield


class Progress:
    """A deadline that moves on with every sign of life."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._last = time.monotonic()

    def advance(self) -> None:
        """There was a sign of life."""
        self._last = time.monotonic()

    def over(self) -> float | None:
        """Seconds since the last sign of life once they are too many, else None."""
        silent = time.monotonic() - self._last
        return silent if silent > self._timeout_s else None
