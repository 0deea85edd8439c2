"""Asking engines: one endpoint after the other, while nothing of an answer has reached the client."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from . import metrics
from .adapters.upstream import Abandoned, Connection, UpstreamFailure
from .call import Call
from .core import errors
from .core.choice import choose, retry_after
from .core.engine_errors import fault_in
from .core.errors import Fault
from .metering import Meter
from .projections import Routes, Target

log = logging.getLogger("llmgw.gateway")

ELSEWHERE = frozenset({401, 403, 404, 408, 429, 500, 502, 503, 504})
"""Answers that say something about the endpoint and not about the request: another one may do better.

401, 403 and 404 are among them because the gateway's key and the model's name are ours, not the client's.
"""
SATURATED = frozenset({429, 503})
"""Busy is not broken: the breaker does not count these."""
ERROR_BODY_BYTES = 1024 * 1024
SWEEP_S = 0.25


class Retryable(Exception):
    """This endpoint failed before any content; ``fault`` is what the client hears when nobody else does better."""

    def __init__(self, reason: str, fault: Fault, broken: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fault = fault
        self.broken = broken
        """Whether it counts against the endpoint."""


class Engines:
    """The endpoints of all models, and how a request is put to one of them."""

    def __init__(self, routes: Routes, attempts: int, deadline_s: float, stall_s: float) -> None:
        self._routes = routes
        self._attempts = attempts
        self._deadline_s = deadline_s
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._busy: set[Connection] = set()
        self._ending = False

    def attempts(self, model: str, meter: Meter) -> Attempts:
        return Attempts(self._routes, model, meter, self._attempts)

    @asynccontextmanager
    async def asked(
        self, target: Target, call: Call, path: str, body: bytes, extra: bytes
    ) -> AsyncIterator[Connection]:
        """A connection with the head of a good answer on it. ``path`` is the engine's.

        Raises Fault for what is the request's fault, Retryable for what is the endpoint's, Abandoned. Leaving
        the block with an exception closes the connection; otherwise it is kept for the next request.
        """
        target.own += 1
        target.breaker.taken(self._loop.time())
        connection: Connection | None = None
        keep = False
        try:
            connection = await self._sent(target, call, _head(target, path, body, extra), body)
            if connection.status != 200:
                raise self.refusal(fault_in(await connection.read_all(ERROR_BODY_BYTES), connection.status))
            yield connection
            target.breaker.succeeded()
            keep = True
        except Fault:
            target.breaker.succeeded()
            keep = True
            raise
        except Retryable as problem:
            if problem.broken:
                target.breaker.failed(self._loop.time())
            else:
                target.breaker.abandoned()
            raise
        except UpstreamFailure as failure:
            target.breaker.failed(self._loop.time())
            raise Retryable(failure.kind, self._fault_of(failure)) from None
        except BaseException:
            target.breaker.abandoned()
            raise
        finally:
            target.own -= 1
            call.connection = None
            if connection is not None:
                self._busy.discard(connection)
                if keep:
                    connection.release()
                else:
                    connection.abort()

    async def _sent(self, target: Target, call: Call, head: bytes, body: bytes) -> Connection:
        connection = target.pool.idle()
        if connection is not None:
            try:
                return await self._heard(connection, call, head, body)
            except UpstreamFailure as failure:
                if failure.kind != "closed" or connection.headed:
                    raise
                # Closed while it was idle, before the engine saw the request: says nothing about the engine.
        return await self._heard(await target.pool.connect(), call, head, body)

    async def _heard(self, connection: Connection, call: Call, head: bytes, body: bytes) -> Connection:
        if call.gone:
            connection.abort()
            raise Abandoned
        call.connection = connection
        connection.deadline = self._loop.time() + self._deadline_s
        self._busy.add(connection)
        connection.send(head, body)
        try:
            await connection.head()
        except BaseException:
            self._busy.discard(connection)
            connection.abort()
            raise
        return connection

    def refusal(self, fault: Fault) -> Exception:
        """Whether an engine's error is about the request (a Fault) or about the endpoint (Retryable)."""
        if fault.status in ELSEWHERE or not 400 <= fault.status < 500:
            status = fault.status
            return Retryable(f"status {status}", errors.upstream_failed(status), status not in SATURATED)
        return fault

    def _fault_of(self, failure: UpstreamFailure) -> Fault:
        if self._ending:
            return errors.stopping()
        if failure.kind == "deadline":
            return errors.deadline(self._deadline_s)
        if failure.kind == "stalled":
            return errors.stalled(self._stall_s)
        return errors.upstream_failed(None)

    def end(self) -> None:
        """This gateway stops: end what is still being answered, so that clients are told before they are cut off."""
        self._ending = True
        for connection in list(self._busy):
            connection.end()

    async def sweep(self) -> None:
        """Close idle connections and give up silent engines, for ever."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self._loop.time()
            for connection in list(self._busy):
                connection.check(now, self._stall_s)
            for target in self._routes.targets.values():
                target.pool.sweep(now)
            metrics.BREAKERS_OPEN.set(sum(not t.breaker.closed for t in self._routes.targets.values()))


class Attempts:
    """The endpoints asked for one request."""

    __slots__ = ("_left", "_meter", "_model", "_routes", "_tried", "last")

    def __init__(self, routes: Routes, model: str, meter: Meter, most: int) -> None:
        self._routes = routes
        self._model = model
        self._meter = meter
        self._left = most
        self._tried: list[str] = []
        self.last: Retryable | None = None

    def next(self) -> Target:
        """The endpoint to ask now. Raises Fault when there is none left."""
        served = self._routes.find(self._model)
        targets = served.targets if served is not None else ()
        now = asyncio.get_running_loop().time()
        target = choose(targets, self._tried, now, random.random()) if self._left else None
        if target is None:
            if self.last is not None:
                raise self.last.fault
            raise errors.no_endpoint(self._model, retry_after(targets, now))
        if self.last is not None:
            metrics.RETRIES.labels(self._model, self.last.reason).inc()
        self._meter.open()
        self._left -= 1
        self._tried.append(target.replica_id)
        self._meter.attempts += 1
        self._meter.replica_id = target.replica_id
        return target

    def failed(self, problem: Retryable) -> None:
        """The endpoint did not answer; ``next`` gives another one."""
        self.last = problem
        log.warning("%s failed for a request to %s: %s", self._tried[-1], self._model, problem.reason)


def _head(target: Target, path: str, body: bytes, extra: bytes) -> bytes:
    """The request's head. Nothing of the client's is in it but what ``extra`` holds."""
    pool = target.pool
    return (
        b"POST %s HTTP/1.1\r\nhost: %s\r\nuser-agent: llmgw\r\naccept: */*\r\naccept-encoding: identity\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n%s%s\r\n"
        % (
            (pool.path + path).encode(),
            pool.authority.encode(),
            len(body),
            target.authorization,
            extra,
        )
    )
