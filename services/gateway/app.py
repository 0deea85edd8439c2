"""The wiring of one worker: a whole gateway but for the process that holds the port."""

from __future__ import annotations

import asyncio
import logging
import socket

from libs.bus import Bus, Misconfigured
from libs.runtime.secrets import BadSecret, decode_fleet_secret, read_reference
from libs.tasks import end

from . import metrics
from .adapters.identity import identity
from .adapters.shared_tables import HostTables, opened, prepare
from .admin import Admin
from .admission.budgets import Budgets
from .admission.checks import Checks
from .cluster.gossip import Gossip
from .cluster.presence import Presence
from .cluster.views import Keys, Policies, Routes
from .core.http.addresses import networks
from .core.http.cors import Origins
from .core.protocols.operations import OPERATIONS
from .http.connection_balance import ConnectionBalance, shared_memory
from .http.keepalive import KeepAlives
from .http.router import Router
from .http.server import HttpServer, listen
from .inference.dispatch import Dispatcher
from .inference.inference import Inference
from .inference.wake_queue import WakeQueue
from .settings import GatewaySettings
from .usage.publisher import Publisher
from .usage.spool import Spool, SpoolBroken

log = logging.getLogger("llmgw.gateway")

TELLING_S = 1.0
"""Before a stop cuts connections off, clients are told for so long that their answers end."""
GAUGES_EVERY_S = 1.0


class Gateway:
    """One worker: a gateway of its own to the rest of the system, whose id lies in its spool.

    ``listening`` is the open socket clients come to; it may be shared with other workers, who are in ``balance`` and
    ``host_tables``. None of them: it is alone on its host. Raises Misconfigured.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        bus: Bus,
        listening: socket.socket,
        balance: ConnectionBalance,
        host_tables: HostTables | None = None,
    ) -> None:
        self._bus = bus
        directory = settings.data_dir / "spool"
        try:
            secret = None
            if settings.fleet_secret is not None:
                secret = decode_fleet_secret(read_reference(settings.fleet_secret), settings.fleet_secret)
            proxies = networks(settings.trusted_proxies)
            origins = Origins(settings.cors_origins)
            gateway_id = identity(directory, settings.instance)
            self._spool = Spool(directory, settings.spool_max_bytes)
            if host_tables is None:
                host_tables = HostTables(gateway_id, prepare(directory), ())
            table = opened(host_tables.table, host_tables.others)
        except (BadSecret, SpoolBroken, OSError, ValueError) as problem:
            raise Misconfigured(str(problem)) from None
        self._presence = Presence(bus, gateway_id, settings.data_dir / "spool")
        self._gossip = Gossip(bus, gateway_id, host_tables.host, table, self._spool.marks)
        self._budgets = Budgets(bus, self._gossip, self._spool)
        self._keys = Keys(bus)
        self._routes = Routes(bus, self._gossip.in_flight, secret, settings.connect_timeout_s)
        self._policies = Policies(bus)
        self._checks = Checks(bus, gateway_id, settings.verdict_timeout_s)
        self._publisher = Publisher(bus, self._spool, gateway_id, self._gossip.spending.begin_epoch)
        wait_s = min(settings.wake_wait_s, settings.deadline_s)
        self._wake_queue = WakeQueue(bus, self._routes, wait_s, settings.wake_waiting)
        self._dispatcher = Dispatcher(
            self._routes,
            self._wake_queue,
            settings.attempts,
            settings.deadline_s,
            settings.stall_s,
            settings.forward_headers,
        )
        self._keep_alives = KeepAlives(settings.stream_keep_alive_s)
        self._router = router = Router(
            self._keys, self._routes, self.not_ready, settings.unknown_keys_per_minute, proxies, origins
        )
        inference = Inference(
            router=router,
            routes=self._routes,
            policies=self._policies,
            gossip=self._gossip,
            budgets=self._budgets,
            spool=self._spool,
            checks=self._checks,
            dispatcher=self._dispatcher,
            keep_alives=self._keep_alives,
            max_body_bytes=settings.max_body_bytes,
            shorten_answers=settings.shorten_answers,
        )
        for operation in OPERATIONS:
            router.add("POST", operation.path, inference.handler(operation))
        Admin(router, bus)
        # Answers in flight may use most of the time a stop has; the rest is for the spool and the bus.
        drain_s = max(1.0, settings.stop_timeout_s - 4)
        self._http = HttpServer(
            router, listening, balance, self._spool.usable, settings.keep_alive_s, drain_s, bus.fail
        )
        self._ends_after_s = max(0.0, drain_s - TELLING_S)
        self._background: list[asyncio.Task[None]] = []
        self._started = False

    async def start(self) -> None:
        """Returns when clients are answered: not before keys, routes and policies were read to their end once."""
        if self._spool.cut:
            log.warning("%d requests were cut when this gateway ended; they are in the ledger as such", self._spool.cut)
            metrics.CUT.inc(self._spool.cut)
        await self._presence.begin()
        for view in (self._policies, self._budgets, self._keys, self._routes):
            await view.start()
        await self._gossip.start(self._own_in_flight, self._wake_queue.counts)
        await self._checks.start()
        self._publisher.start()
        loops = {"engines": self._dispatcher.sweep, "keep-alives": self._keep_alives.run, "gauges": self._measure}
        self._background = [self._bus.background(name, loop) for name, loop in loops.items()]
        for view in (self._policies, self._keys, self._routes):
            await view.caught_up()
        await self._budgets.caught_up(self._keys.budgeted())
        await self._http.start()
        self._started = True

    async def stop(self) -> None:
        """Let answers end for as long as a stop may take, publish what was used, and leave the cluster."""
        ending = asyncio.get_running_loop().call_later(self._ends_after_s, self._dispatcher.end)
        await self._http.stop()
        ending.cancel()
        await end(*self._background)
        metrics.flush()
        await self._wake_queue.stop()
        await self._publisher.stop()
        await self._checks.stop()
        await self._gossip.stop()
        for view in (self._routes, self._keys, self._budgets, self._policies):
            await view.stop()
        self._spool.close()
        await self._presence.stop()

    def not_ready(self) -> list[str]:
        """The reasons why this gateway should get no traffic; none: it may."""
        reasons = []
        if not self._started:
            reasons.append("keys, routes and policies are being read")
        elif not any(served.ready or served.wakeable for served in self._routes.models.values()):
            reasons.append("no engine serves any model")
        if self._spool.problem is not None:
            reasons.append(self._spool.problem)
        return reasons

    def _own_in_flight(self) -> dict[str, int]:
        return {target.replica_id: target.own for target in self._routes.targets.values() if target.own}

    async def _measure(self) -> None:
        while True:
            metrics.flush()
            metrics.IN_FLIGHT.set(self._router.in_flight)
            metrics.WAITING.set(sum(self._wake_queue.counts.values()))
            metrics.SPOOL_BACKLOG.set(self._spool.backlog_bytes)
            metrics.SPOOL_UNREADABLE.set(len(self._spool.unreadable))
            await asyncio.sleep(GAUGES_EVERY_S)


def build(settings: GatewaySettings, bus: Bus) -> Gateway:
    """One worker on a socket of its own. Raises Misconfigured, PortTaken."""
    listening = listen(settings.host, settings.port)
    try:
        return Gateway(settings, bus, listening, ConnectionBalance(shared_memory(1), 1, 0))
    except Misconfigured:
        listening.close()
        raise
