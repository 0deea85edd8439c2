"""The process in front of the workers: it owns the port, so that no connection is refused while a worker restarts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec
import uvloop

from libs.bus import supervise
from libs.runtime import logs, metrics, traces
from libs.runtime.run import version
from libs.runtime.status import PortTaken, StatusServer
from libs.runtime.systemd import Notifier
from libs.tasks import end
from services.gateway.adapters.identity import identity
from services.gateway.adapters.shared_tables import HostTables, prepare
from services.gateway.http.connection_balance import shared_memory, worker_ended
from services.gateway.http.server import listen
from services.gateway.settings import GatewaySettings

from .inheritance import VARIABLE, Inheritance, encode

log = logging.getLogger("llmgw.gateway")

STEADY_S = 10.0
"""A worker that ran for so long is started again at once; one that did not waits, twice as long each time."""
BACK_OFF_S = 0.25
BACK_OFF_MAX_S = 15.0
STOP_GRACE_S = 12.0
"""What a worker needs to close its bus and traces after its own bounded stop."""
NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""systemd hears from the parent only."""


class WorkerProcess:
    """One worker: started, watched, started again."""

    def __init__(
        self,
        settings: GatewaySettings,
        index: int,
        listening: socket.socket,
        balance_fd: int,
        host_tables: HostTables,
        fail: Callable[[str], None],
    ) -> None:
        self._index = index - 1
        self._host_tables = host_tables
        self._fail = fail
        self._balance_fd = balance_fd
        self._settings = msgspec.structs.replace(
            settings,
            instance=f"{settings.instance}-{index}",
            data_dir=settings.worker_directory(index),
            status_port=0,
        )
        self._listening = listening
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self.not_ready: list[str] = ["starting"]

    async def keep(self) -> None:
        """Run the worker until ``stop``."""
        quick = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            status = await self._run()
            if self._stopping.is_set():
                return
            quick = 0 if time.monotonic() - started > STEADY_S else quick + 1
            pause_s = min(BACK_OFF_MAX_S, BACK_OFF_S * 2 ** min(quick - 2, 30)) if quick > 1 else 0.0
            log.error("%s ended (%s); starting it again in %g s", self._settings.instance, _why(status), pause_s)
            self.not_ready = [f"ended ({_why(status)})"]
            await asyncio.sleep(pause_s)

    async def _run(self) -> int:
        """One life of the worker; its exit status."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        inheritance = Inheritance(
            settings=self._settings,
            index=self._index,
            host_tables=self._host_tables,
            listening_fd=self._listening.fileno(),
            balance_fd=self._balance_fd,
            control_fd=theirs.fileno(),
        )
        environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        with ours:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "services.gateway.process.worker"),
                    stdin=asyncio.subprocess.DEVNULL,
                    env=environment | {VARIABLE: encode(inheritance)},
                    pass_fds=(inheritance.listening_fd, inheritance.balance_fd, inheritance.control_fd),
                )
            listening = supervise(lambda: self._listen(ours), name="a worker's report", fail=self._fail)
            try:
                status = await self._process.wait()
            finally:
                await end(listening)
        metrics.worker_ended(self._process.pid)
        worker_ended(self._balance_fd, self._index)
        return status

    async def _listen(self, control: socket.socket) -> None:
        """What the worker says of its readiness: JSON lists of reasons, a line each."""
        loop = asyncio.get_running_loop()
        held = b""
        with contextlib.suppress(OSError):  # it was killed, which is noticed elsewhere
            while data := await loop.sock_recv(control, 65536):
                *lines, held = (held + data).split(b"\n")
                if lines:
                    self.not_ready = msgspec.json.decode(lines[-1], type=list[str])

    def stop(self) -> None:
        """Ask the worker to stop, and start it no more."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


class Parent:
    """Socket, workers, and one /health, /ready and /metrics for all of them."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._notifier = Notifier()
        self._asked_to_stop = asyncio.Event()
        self._workers: list[WorkerProcess] = []
        self._stopping = False
        self._failure = ""

    def not_ready(self) -> list[str]:
        """Ready as long as one worker is: it answers for the others."""
        if self._stopping:
            return ["stopping"]
        if any(not worker.not_ready for worker in self._workers):
            return []
        return sorted({reason for worker in self._workers for reason in worker.not_ready})

    async def run(self) -> int:
        """Until a signal asks to stop, or a task of this process fails. The exit status."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop.set)
        os.environ.update(metrics.worker_environment(settings.data_dir / "metrics"))
        status: StatusServer | None = None
        try:
            listening = listen(settings.host, settings.port)
            if settings.status_port:
                status = StatusServer("gateway", settings.status_host, settings.status_port, self.not_ready, self._fail)
                await status.start()
            host = identity(settings.data_dir, settings.instance)
            directories = [settings.worker_directory(index) / "spool" for index in range(1, settings.workers + 1)]
            tables = [prepare(directory) for directory in directories]
        except (PortTaken, OSError, ValueError) as problem:
            log.error("gateway cannot start: %s", problem)
            return 1
        port = listening.getsockname()[1]
        log.info("gateway %s listens on http://%s:%d with %d workers", version(), settings.host, port, settings.workers)
        balance_fd = shared_memory(settings.workers)
        self._workers = [
            WorkerProcess(
                settings,
                index,
                listening,
                balance_fd,
                HostTables(host, table, tuple(other for other in tables if other != table)),
                self._fail,
            )
            for index, table in enumerate(tables, start=1)
        ]
        keeping = [supervise(worker.keep, name="a worker's keeper", fail=self._fail) for worker in self._workers]
        telling = supervise(self._tell, name="telling readiness", fail=self._fail)
        watchdog = supervise(self._notifier.feed_watchdog, name="systemd watchdog", fail=self._fail)
        await self._asked_to_stop.wait()
        clean = await self._stop(keeping)
        await end(telling, watchdog)
        listening.close()
        os.close(balance_fd)
        if status is not None:
            await status.stop()
        log.info("gateway stopped")
        if self._failure:
            log.error("gateway must start again: %s", self._failure)
        return 0 if clean and not self._failure else 1

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._asked_to_stop.set()

    async def _stop(self, keeping: list[asyncio.Task[None]]) -> bool:
        self._stopping = True
        bound_s = self._settings.stop_timeout_s + STOP_GRACE_S
        self._notifier.stopping(bound_s)
        for worker in self._workers:
            worker.stop()
        _, late = await asyncio.wait(keeping, timeout=bound_s)
        for worker in self._workers if late else ():
            log.error("a worker did not stop within %g s and is killed", bound_s)
            worker.kill()
        if late:
            await asyncio.wait(late)
        return not late

    async def _tell(self) -> None:
        """systemd, once one worker is ready to be asked; and the log, when readiness changes."""
        reported: list[str] | None = None
        while True:
            reasons = self.not_ready()
            if reasons != reported:
                log.info("gateway is %s", f"not ready: {'; '.join(reasons)}" if reasons else "ready")
                if any("starting" not in worker.not_ready for worker in self._workers):
                    self._notifier.ready("ready" if not reasons else "not ready: " + "; ".join(reasons))
                reported = reasons
            await asyncio.sleep(0.25)


def _why(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def main(settings: GatewaySettings) -> int:
    """Run the gateway: the socket, its workers, and one status port for all of them. The exit status."""
    logs.configure("gateway", settings.instance, settings.log_level, settings.log_format)
    traces.configure("gateway", settings.instance, None)
    return uvloop.run(Parent(settings).run())
