"""How the machine is doing, told every few seconds; and said again what it is when that changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import psutil

from libs.bus import Bus
from libs.events.machine import MachineSample
from libs.tasks import end

from .machine.hardware import Hardware
from .shard.fetching import Fetching
from .shard.supervisor import Supervisor

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 5.0


class Telemetry:
    """Two clocks: the sample, whose silence means that the node is lost, and the slower look at what it is."""

    def __init__(
        self, machine_id: str, bus: Bus, hardware: Hardware, supervisor: Supervisor, fetching: Fetching, every_s: float
    ) -> None:
        self._machine_id = machine_id
        self._bus = bus
        self._hardware = hardware
        self._supervisor = supervisor
        self._fetching = fetching
        self.every_s = every_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, look: Callable[[], None]) -> None:
        """``look`` is called now and then to say what the machine is, should that have changed."""
        self._tasks = [
            self._bus.background("telemetry", self._sample_on),
            self._bus.background("the look at the hardware", lambda: self._look_on(look)),
        ]

    async def stop(self) -> None:
        """Measure no more."""
        await end(*self._tasks)

    async def _sample_on(self) -> None:
        psutil.cpu_percent()  # the first call only sets its mark
        last = time.monotonic()
        while True:
            try:
                now = time.monotonic()
                await self._supervisor.measure(now - last)
                last = now
                if not self._hardware.silent:
                    await self._bus.tell(self._sample())
            except Exception:
                # A figure that cannot be read must not make the machine look dead.
                log.exception("a measurement failed")
            await asyncio.sleep(self.every_s)

    def _sample(self) -> MachineSample:
        hardware, runners = self._hardware, [runner for runner in self._supervisor.runners.values() if not runner.ended]
        # An engine's workers hold GPU memory as well as its first process.
        sample = MachineSample(
            at=datetime.now(UTC),
            machine_id=self._machine_id,
            disk_free_mb=hardware.disk_free_mb(),
            weights_free_mb=hardware.weights_free_mb(),
            gpus=hardware.gpu_samples(self._supervisor.measured_pids()),
            gpus_reason=hardware.gpus_reason(),
            ports=hardware.port_samples(),
            shards=tuple(runner.sample() for runner in runners),
            fetching=self._fetching.progress(),
        )
        reserved_mb = sum(runner.wanted.memory_mb for runner in runners)
        cores = sum(runner.cpu_cores or 0.0 for runner in runners)
        return msgspec.structs.replace(sample, **hardware.use(reserved_mb, cores))

    async def _look_on(self, look: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            try:
                look()
            except Exception:
                log.exception("the machine's description could not be renewed")
