"""The life of a service process: settings in hand → bus → service → ready … → an orderly, bounded stop.

Alive and ready are two things: /health answers as soon as the process runs, /ready when the service can do its work.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import inspect
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import uvloop

from libs.bus import Bus, BusSettings, Misconfigured, connect, keep, supervise, verify
from libs.tasks import end

from . import logs, metrics, traces
from .cannot_start import CannotStart
from .settings import CommonSettings, S
from .status import StatusServer
from .systemd import Notifier

log = logging.getLogger("llmgw.run")

T = TypeVar("T")
TELL_EVERY_S = 10.0
CLOSE_TIMEOUT_S = 5.0
"""For what every process has to close after its service: bus, traces, status port."""
DONE, FAILED = 0, 1


class Service(Protocol):
    """What a service's ``build`` returns."""

    async def start(self) -> None:
        """Begin to work. Returns when all parts run, which may be before they are caught up."""

    async def stop(self) -> None:
        """Finish what is in hand, let go of the rest. Bounded by ``stop_timeout_s``."""

    def not_ready(self) -> list[str]:
        """Why it cannot do its work now, one reason each; empty when it can."""


@runtime_checkable
class Renewable(Protocol):
    """A service that may ask to be stopped and started anew. The process begins anew in its own place, so that
    whoever keeps it sees no end: where it is a container's first process, the container goes on."""

    again: asyncio.Event


Build = Callable[[S, Bus], Service | Awaitable[Service]]


class Phase(Enum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


def version() -> str:
    """Of llmgw, as it is installed."""
    return importlib.metadata.version("llmgw")


def serve(service_name: str, settings: S, build: Build[S], *, identity: str | None = None) -> int:
    """Run a service until SIGTERM or SIGINT; returns the process's exit status.

    ``identity`` is its name on the bus when that is not the service's name. Exit status 1: it could not start, its
    connection to the bus broke beyond repair, or it did not stop in time; a supervisor starts it again.
    """
    logs.configure(service_name, settings.instance, settings.log_level, settings.log_format)
    traces.configure(service_name, settings.instance, settings.otlp_endpoint)
    metrics.BUILD.labels(service_name, version()).set(1)
    process = Process(service_name, settings, build, identity or service_name)
    status = uvloop.run(process.run())
    if process.again:
        logging.shutdown()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return status


class Process:
    """One service in this process, from start to stop."""

    def __init__(self, name: str, settings: S, build: Build[S], identity: str) -> None:
        self._name = name
        self._settings: CommonSettings = settings
        self._identity = identity
        self._make: Callable[[Bus], Service | Awaitable[Service]] = lambda bus: build(settings, bus)
        self._phase = Phase.STARTING
        self._waiting_for = "its start"
        self._asked_to_stop = asyncio.Event()
        self._notifier = Notifier()
        self._bus: Bus | None = None
        self._service: Service | None = None
        self._status: StatusServer | None = None
        self._background: list[asyncio.Task[None]] = []
        self.again = False
        """Its service asked to be started anew."""

    def not_ready(self) -> list[str]:
        """Why the process cannot do its work now."""
        if self._phase is Phase.STOPPING:
            return ["stopping"]
        if self._phase is Phase.STARTING or self._service is None:
            return [f"waiting for {self._waiting_for}"]
        return self._service.not_ready()

    async def run(self) -> int:
        """Start the service, let it work until it is to stop, and stop it; the exit status: DONE or FAILED."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        log.info("%s %s starts", self._name, version(), extra={"pid": os.getpid()})
        try:
            started = await self._until_asked(self._start())
            status = await self._work() if started else DONE
        except (CannotStart, Misconfigured) as problem:
            log.error("%s cannot start: %s", self._name, problem)
            status = FAILED
        except Exception:
            log.exception("%s cannot start", self._name)
            status = FAILED
        return max(status, await self._stop())

    def _on_signal(self, number: int) -> None:
        if self._asked_to_stop.is_set():
            log.warning("%s again: ending at once", signal.Signals(number).name)
            logging.shutdown()
            os._exit(FAILED)
        log.info("%s received", signal.Signals(number).name)
        self._asked_to_stop.set()

    def _fail(self, why: str) -> None:
        """Something of the process itself broke. Before it has a bus it does nothing yet that could be wrong."""
        if self._bus is not None:
            self._bus.fail(why)

    async def _until_asked(self, work: Awaitable[None]) -> bool:
        """Do ``work`` unless asked to stop meanwhile; whether it was done."""
        task = asyncio.ensure_future(work)
        asked = asyncio.create_task(self._asked_to_stop.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return True
            return False
        finally:
            asked.cancel()
            if not task.done():
                await end(task)

    async def _start(self) -> None:
        settings = self._settings
        if settings.status_port:
            self._status = StatusServer(
                self._name, settings.status_host, settings.status_port, self.not_ready, self._fail
            )
            await self._status.start()
        self._background = [
            supervise(metrics.watch_loop_lag, name="loop lag", fail=self._fail),
            supervise(self._notifier.feed_watchdog, name="systemd watchdog", fail=self._fail),
        ]
        wanted = BusSettings(settings.nats_url, settings.credentials, self._identity, settings.instance)
        self._bus = await self._waited(f"the bus at {settings.nats_url}", connect(wanted))
        await self._waited("the streams of the bus (`llmgw bus init`)", verify(self._bus, self._waits_for))
        self._background.append(self._bus.background("the keeper of volatile streams", partial(keep, self._bus)))
        built = self._make(self._bus)
        self._service = await built if inspect.isawaitable(built) else built
        await self._waited("its parts", self._service.start())
        self._phase = Phase.RUNNING

    async def _waited(self, what: str, work: Awaitable[T]) -> T:
        """Await ``work`` for as long as it takes, saying now and then for what."""
        self._waiting_for = what
        task = asyncio.ensure_future(work)
        try:
            while True:
                self._notifier.waiting(f"waiting for {what}", 3 * TELL_EVERY_S)
                done, _ = await asyncio.wait({task}, timeout=TELL_EVERY_S)
                if done:
                    return task.result()
                log.warning("still waiting for %s", self._waiting_for)
        finally:
            task.cancel()

    def _waits_for(self, what: str) -> None:
        self._waiting_for = what

    async def _work(self) -> int:
        """From running to being asked to stop; one line when it becomes ready."""
        assert self._bus is not None
        log.info("%s runs", self._name)
        self._notifier.ready("running")
        announcing = asyncio.create_task(self._announce_ready())
        broken = asyncio.create_task(self._bus.failed.wait())
        asked = asyncio.create_task(self._asked_to_stop.wait())
        renewed = asyncio.create_task(self._asked_again())
        try:
            came, _ = await asyncio.wait({broken, asked, renewed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (announcing, broken, asked, renewed):
                task.cancel()
        if self._bus.failed.is_set():
            log.error("%s must start again: %s", self._name, self._bus.failure)
            return FAILED
        self.again = renewed in came and asked not in came
        return DONE

    async def _asked_again(self) -> None:
        """Until the service asks to be started anew, if it is one that does, or the log went back."""
        assert self._bus is not None
        again = self._service.again if isinstance(self._service, Renewable) else asyncio.Event()
        waiting = [asyncio.create_task(event.wait()) for event in (self._bus.void, again)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if self._bus.void.is_set():
            log.error("%s begins anew, from the log as it is now: %s", self._name, self._bus.void_because)

    async def _announce_ready(self) -> None:
        announced: list[str] = []
        ready = False
        while True:
            reasons = self.not_ready()
            if not reasons and not ready:
                log.info("%s is ready", self._name)
                self._notifier.tell(STATUS="ready")
            elif reasons and reasons != announced:
                log.info("%s is not ready: %s", self._name, "; ".join(reasons))
                self._notifier.tell(STATUS="not ready: " + "; ".join(reasons))
            ready, announced = not reasons, reasons
            await asyncio.sleep(0.25)

    async def _stop(self) -> int:
        """Stop in three bounded steps: take no more work, finish what is in hand, close what is shared."""
        self._phase = Phase.STOPPING
        timeout_s = self._settings.stop_timeout_s
        if self.again:
            self._notifier.renewing()
        else:
            self._notifier.stopping(timeout_s + 2 * CLOSE_TIMEOUT_S)
        log.info("%s stops: not ready any more, finishing what is in hand (at most %g s)", self._name, timeout_s)
        clean = True
        if self._service is not None:
            clean = await self._bounded("finishing", self._service.stop(), timeout_s)
        await end(*self._background)
        if self._bus is not None:
            clean &= await self._bounded("closing the bus", self._bus.close(), CLOSE_TIMEOUT_S)
        if traces.recording():
            clean &= await self._bounded("sending traces", asyncio.to_thread(traces.shutdown), CLOSE_TIMEOUT_S)
        if self._status is not None:
            clean &= await self._bounded("closing the status port", self._status.stop(), CLOSE_TIMEOUT_S)
        log.info("%s stopped%s", self._name, "" if clean else ", not everything in order")
        return DONE if clean else FAILED

    async def _bounded(self, step: str, work: Awaitable[None], timeout_s: float) -> bool:
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            log.error("%s took longer than %g s and was cut short", step, timeout_s)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await asyncio.wait_for(task, 1)
            return False
        if task.exception() is not None:
            log.error("%s failed", step, exc_info=task.exception())
            return False
        return True
