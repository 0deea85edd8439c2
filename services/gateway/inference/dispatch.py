"""Dispatch to engines: one endpoint after the other, then other models, while nothing has reached the client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple

from services.gateway import metrics
from services.gateway.adapters.upstream import Abandoned, Connection, UpstreamFailure
from services.gateway.admission.request import InferenceRequest
from services.gateway.cluster.views import Routes, Target
from services.gateway.core import faults
from services.gateway.core.engine_errors import fault_in
from services.gateway.core.faults import Fault
from services.gateway.core.routing.load_balancing import retry_after
from services.gateway.http.exchange import Exchange

from .metering import Meter
from .wake_queue import WakeQueue

log = logging.getLogger("llmgw.gateway")

ELSEWHERE = frozenset({401, 403, 404, 408, 429, 500, 502, 503, 504})
"""Answers that say something about the endpoint and not about the request: another one may do better.

401, 403 and 404 are among them because the gateway's key and the model's name are ours, not the client's.
"""
SATURATED = frozenset({429, 503})
"""Busy is not broken: the breaker does not count these."""
OUR_MISTAKE = frozenset({401, 403, 404})
"""No client's request brings these about."""
ERROR_BODY_BYTES = 1024 * 1024
COUNT_BYTES = 16 * 1024 * 1024
"""The ids of all tokens of a prompt, for one."""
SWEEP_S = 0.25


Blame = Literal["endpoint", "perhaps", "nobody"]
"""Of a failure: the endpoint; perhaps it, perhaps the request; or it says nothing about the endpoint."""
BLAME: dict[str, Blame] = {"odd": "nobody", "deadline": "perhaps", "stalled": "perhaps"}
"""By kind of UpstreamFailure; of the others it is the endpoint."""


class EndpointFailure(NamedTuple):
    """How an endpoint failed, and what the client hears when nobody else does better."""

    reason: str
    fault: Callable[[], Fault]
    blame: Blame


class RetryableFailure(Exception):
    """This endpoint failed before any content; another one may be asked."""

    def __init__(self, reason: str, fault: Callable[[], Fault], blame: Blame = "endpoint") -> None:
        super().__init__(reason)
        self.failure = EndpointFailure(reason, fault, blame)


class Dispatcher:
    """The endpoints of all models, and how a request is put to one of them."""

    def __init__(
        self,
        routes: Routes,
        wake_queue: WakeQueue,
        attempts: int,
        deadline_s: float,
        stall_s: float,
        forward_headers: Iterable[str],
    ) -> None:
        """``attempts``: endpoints of one model asked for one request; ``forward_headers``: names of the client's
        headers that engines get."""
        self._routes = routes
        self._wake_queue = wake_queue
        self._attempts = attempts
        self._deadline_s = deadline_s
        self._stall_s = stall_s
        self._forward_headers = frozenset(name.lower().encode() for name in forward_headers)
        self._loop = asyncio.get_running_loop()
        self._busy: set[Connection] = set()
        self._ending = False

    def attempts(self, request: InferenceRequest, meter: Meter) -> Attempts:
        """The endpoints for a request, one after the other."""
        until = self._until(request.exchange)
        return Attempts(self._routes, self._wake_queue, request, meter, self._attempts, until, self._too_late)

    def _too_late(self) -> Fault:
        return faults.deadline(self._deadline_s)

    def _until(self, exchange: Exchange) -> float:
        """When its client has waited long enough, by the loop's clock: counted from its arrival, whatever was done for
        it meanwhile and however many engines were asked."""
        return self._loop.time() + self._deadline_s - (time.perf_counter() - exchange.started)

    @asynccontextmanager
    async def connection(
        self, target: Target, request: InferenceRequest, path: str, body: bytes
    ) -> AsyncIterator[Connection]:
        """A connection to an endpoint with the head of a good answer on it. ``path`` is the engine's.

        Raises Fault for what is the request's fault, RetryableFailure for what is the endpoint's, Abandoned. Leaving
        the block with an exception closes the connection; otherwise it is kept for the next request.
        """
        exchange, key_id = request.exchange, request.key.key_id
        target.own += 1
        target.breaker.request_sent(self._loop.time())
        connection: Connection | None = None
        keep = False
        try:
            head = _head(target, path, body, self._forwarded(exchange))
            connection = await self._answering(target, exchange, head, body)
            if connection.status != 200:
                raise self.refusal(fault_in(await connection.read_all(ERROR_BODY_BYTES), connection.status))
            yield connection
            target.breaker.succeeded()
            keep = True
        except Fault:
            target.breaker.succeeded()
            keep = True
            raise
        except RetryableFailure as problem:
            self._note(target, key_id, problem.failure.blame)
            raise
        except UpstreamFailure as failure:
            kind = failure.kind
            blame = BLAME.get(kind, "endpoint")
            self._note(target, key_id, blame)
            raise RetryableFailure(kind, lambda: self._fault_of(kind), blame) from None
        except BaseException:
            target.breaker.abandoned()
            raise
        finally:
            target.own -= 1
            exchange.connection = None
            if connection is not None:
                self._busy.discard(connection)
                if keep:
                    connection.release()
                else:
                    connection.abort()

    def _forwarded(self, exchange: Exchange) -> bytes:
        """Header lines an engine gets of an exchange."""
        lines = b"x-request-id: %s\r\n" % exchange.request_id.encode()
        if exchange.traceparent:
            lines += b"traceparent: %s\r\n" % exchange.traceparent
            if exchange.tracestate:
                lines += b"tracestate: %s\r\n" % exchange.tracestate
        if self._forward_headers:
            lines += exchange.forwarded(self._forward_headers)
        return lines

    def _note(self, target: Target, key_id: str, blame: Blame) -> None:
        if blame == "nobody":
            target.breaker.abandoned()
        else:
            target.breaker.failed(self._loop.time(), key_id if blame == "perhaps" else None)

    async def _answering(self, target: Target, exchange: Exchange, head: bytes, body: bytes) -> Connection:
        connection = target.pool.idle()
        if connection is not None:
            try:
                return await self._send(connection, exchange, head, body)
            except UpstreamFailure as failure:
                if failure.kind != "closed" or connection.headed:
                    raise
                # Closed while it was idle, before the engine saw the request: says nothing about the engine.
        return await self._send(await target.pool.connect(), exchange, head, body)

    async def _send(self, connection: Connection, exchange: Exchange, head: bytes, body: bytes) -> Connection:
        if exchange.gone:
            connection.abort()
            raise Abandoned
        exchange.connection = connection
        connection.deadline = self._until(exchange)
        self._busy.add(connection)
        connection.send(head, body)
        try:
            await connection.head()
        except BaseException:
            self._busy.discard(connection)
            connection.abort()
            raise
        return connection

    def counters(self, target: Target, model: str) -> list[Target]:
        """Who can be asked to count beside a request to ``target``: it, and another one of the model; nobody at the
        end."""
        if self._ending:
            return []
        served = self._routes.find(model)
        others = [other for other in served.targets if other is not target] if served is not None else []
        return [counter for counter in (target, *others[:1]) if counter.breaker.closed]

    async def ask(self, target: Target, path: str, body: bytes) -> bytes | None:
        """The answer to a small question beside a request; None where there is none.

        Whatever becomes of it says nothing about the endpoint, and is no request of anybody's.
        """
        connection: Connection | None = None
        try:
            connection = await target.pool.connect()
            connection.send(_head(target, path, body, b""), body)
            status = await connection.head()
            payload = await connection.read_all(COUNT_BYTES)
        except (UpstreamFailure, Abandoned):
            status, payload = 0, b""
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        if status and connection is not None:
            connection.release()
        elif connection is not None:
            connection.abort()
        return payload if status == 200 else None

    def refusal(self, fault: Fault) -> Exception:
        """Whether an engine's error is about the request (a Fault) or about the endpoint (Retryable)."""
        if fault.status in ELSEWHERE or not 400 <= fault.status < 500:
            status = fault.status
            blame: Blame = "nobody" if status in SATURATED else "endpoint" if status in OUR_MISTAKE else "perhaps"
            return RetryableFailure(f"status {status}", lambda: faults.upstream_failed(status), blame)
        return fault

    def _fault_of(self, kind: str) -> Fault:
        if self._ending:
            return faults.stopping()
        if kind == "odd":
            return faults.upstream_odd()
        if kind == "deadline":
            return self._too_late()
        if kind == "stalled":
            return faults.stalled(self._stall_s)
        return faults.upstream_failed(None)

    def end(self) -> None:
        """This gateway stops: end what is still being answered, so that clients are told before they are cut off."""
        self._ending = True
        self._wake_queue.end()
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
    """The endpoints asked for one request: of the model it asks for, then of those that model names as fallbacks."""

    __slots__ = (
        *("_attempts", "_chain", "_left", "_loop", "_meter", "_request", "_routes", "_step", "_too_late", "_tried"),
        *("_until", "_wake_queue", "last", "model"),
    )

    def __init__(
        self,
        routes: Routes,
        wake_queue: WakeQueue,
        request: InferenceRequest,
        meter: Meter,
        attempts: int,
        until: float,
        too_late: Callable[[], Fault],
    ) -> None:
        """``attempts``: endpoints of one model; ``until``: when nobody is asked any more, by the loop's clock;
        ``too_late``: what the client hears then."""
        self._routes = routes
        self._wake_queue = wake_queue
        self._request = request
        self._meter = meter
        self._left = self._attempts = attempts
        self._until = until
        self._too_late = too_late
        self._loop = asyncio.get_running_loop()
        self._tried: list[str] = []
        self._chain: tuple[str, ...] = ()
        self._step = 0
        self.model = request.served.route.model
        """The one that is asked now."""
        self.last: EndpointFailure | None = None
        """Not the exception: its traceback holds this, and so would keep all that was read for the request."""

    def next(self) -> Target | None:
        """The endpoint to ask now; None when the model has none that may be: ``fallback`` knows what then."""
        served, now = self._routes.find(self.model), self._loop.time()
        if served is None or not self._left or now >= self._until:
            return None
        target = served.choose(self._tried, now)
        return self._chosen(target) if target is not None else None

    def _chosen(self, target: Target) -> Target:
        if self.last is not None:
            metrics.RETRIES.labels(self.model, self.last.reason).inc()
            if self.last.blame != "nobody":
                self._meter.failed_replicas += (self._tried[-1],)
        self._left -= 1
        self._tried.append(target.replica_id)
        return target

    async def fallback(self) -> Target:
        """An endpoint of a fallback; where none has one, wait for the first model that is started on demand.

        Only fallbacks that can answer the request, and that the asked model itself names, are looked at, each once:
        there are no circles. Raises Fault when nobody answers it, Abandoned.
        """
        if not self._chain:
            self._chain = _chain(self._routes, self.model)
        while True:
            if self._loop.time() >= self._until:
                raise self.last.fault() if self.last is not None else self._too_late()
            asleep: str | None = None
            for step in range(self._step, len(self._chain)):
                served = self._routes.find(self._chain[step])
                if served is None or (step == self._step and not self._left):
                    continue
                if step and not self._request.may_fall_back_to(served):
                    continue
                if served.route.stopped is not None:
                    if step == 0:
                        raise faults.stopped(self.model, served.route.stopped, served.route.stopped_reason)
                    continue
                target = served.choose(self._tried, self._loop.time())
                if target is not None:
                    if asleep is not None:
                        self._wake_queue.wake(asleep)  # for those who come later
                    if step != self._step:
                        self._fall_back(step)
                    return self._chosen(target)
                if asleep is None and served.wakeable:
                    asleep = self._chain[step]
            if asleep is None:
                raise self._nobody()
            began = time.perf_counter()
            try:
                await self._wake_queue.change(self._request.exchange, asleep, self._chain[self._step :])
            finally:
                self._meter.waited_ms += round((time.perf_counter() - began) * 1000, 3)

    def _fall_back(self, step: int) -> None:
        metrics.FALLBACKS.labels(self._chain[0], self._chain[step]).inc()
        self._step = step
        self._left = self._attempts
        self.model = self._chain[step]
        self._meter.answered_by(self.model)
        self._request.answered_by(self.model)

    def _nobody(self) -> Fault:
        if self.last is not None:
            return self.last.fault()
        served = self._routes.find(self.model)
        targets = served.targets if served is not None else ()
        return faults.no_endpoint(self.model, retry_after(targets, self._loop.time()))

    def failed(self, failure: EndpointFailure) -> None:
        """The endpoint did not answer; ``next`` gives another one."""
        self.last = failure
        log.warning("%s failed for a request to %s: %s", self._tried[-1], self.model, failure.reason)


def _chain(routes: Routes, model: str) -> tuple[str, ...]:
    """A model and its fallbacks by their own names, each once; those that are not there are left out."""
    served = routes.find(model)
    if served is None:
        return (model,)
    fallbacks = [routes.find(name) for name in served.route.fallbacks]
    return tuple(dict.fromkeys([model, *(other.route.model for other in fallbacks if other is not None)]))


def _head(target: Target, path: str, body: bytes, forwarded: bytes) -> bytes:
    """The request's head. Nothing of the client's is in it but what ``forwarded`` holds."""
    pool = target.pool
    return (
        b"POST %s HTTP/1.1\r\nhost: %s\r\nuser-agent: llmgw\r\naccept: */*\r\naccept-encoding: identity\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n%s%s\r\n"
        % (
            (pool.path + path).encode(),
            pool.authority.encode(),
            len(body),
            target.authorization,
            forwarded,
        )
    )
