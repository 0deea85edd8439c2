"""A worker process, started by the parent with an open socket: ``python -m services.gateway.process.worker``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys

import msgspec

from libs.bus import Bus
from libs.runtime import run
from libs.tasks import end
from services.gateway.adapters.shared_tables import HostTables
from services.gateway.app import Gateway
from services.gateway.http.connection_balance import ConnectionBalance
from services.gateway.settings import GatewaySettings

from .inheritance import VARIABLE, decode

log = logging.getLogger("llmgw.gateway")

REPORT_EVERY_S = 0.25
GC_THRESHOLD = 20_000
"""Objects made and not yet freed before the youngest are looked through; Python's 700 is a request or two."""


class Worker:
    """A Gateway that tells its parent whether it is ready, and ends with it. Raises Misconfigured."""

    def __init__(
        self,
        settings: GatewaySettings,
        bus: Bus,
        listening: socket.socket,
        balance: ConnectionBalance,
        host_tables: HostTables,
        control: socket.socket,
    ) -> None:
        self._bus = bus
        self._gateway = Gateway(settings, bus, listening, balance, host_tables)
        self._control = control
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when clients are answered."""
        self._tasks = [
            self._bus.background("the watch over the parent", self._end_with_parent),
            self._bus.background("the report to the parent", self._report),
        ]
        await self._gateway.start()
        # Requests leave almost no cycles behind: what lives for good is not looked through again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)

    async def stop(self) -> None:
        """Stop the gateway; the parent hears of it by this process's end."""
        await self._gateway.stop()
        await end(*self._tasks)

    def not_ready(self) -> list[str]:
        """The gateway's reasons."""
        return self._gateway.not_ready()

    async def _end_with_parent(self) -> None:
        """The parent never writes; its end closing means that it is gone, and with it the port's owner."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_recv(self._control, 1)
        log.error("the parent process is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)

    async def _report(self) -> None:
        reported: list[str] | None = None
        while True:
            reasons = self.not_ready()
            if reasons != reported:
                line = msgspec.json.encode(reasons) + b"\n"
                try:
                    await asyncio.get_running_loop().sock_sendall(self._control, line)
                except OSError:
                    return  # the parent is gone, which is noticed elsewhere
                reported = reasons
            await asyncio.sleep(REPORT_EVERY_S)


def main() -> int:
    """Run the worker until it is asked to stop. The exit status."""
    inheritance = decode(os.environ.pop(VARIABLE))
    listening = socket.socket(fileno=inheritance.listening_fd)
    control = socket.socket(fileno=inheritance.control_fd)
    control.setblocking(False)
    balance = ConnectionBalance(inheritance.balance_fd, inheritance.settings.workers, inheritance.index)

    def build(settings: GatewaySettings, bus: Bus) -> Worker:
        return Worker(settings, bus, listening, balance, inheritance.host_tables, control)

    return run.serve("gateway", inheritance.settings, build)


if __name__ == "__main__":
    sys.exit(main())
