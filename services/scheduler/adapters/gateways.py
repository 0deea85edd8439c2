"""Hears gateways for the core: who is busy with what, how long requests wait, and how they ended."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from libs.bus import Bus
from libs.events.usage import GatewayRates, RequestRecord, UsageBatch
from services.scheduler.core.inputs.traffic import (
    LONG_MS,
    PACES_LEAST,
    SHORT_MS,
    ModelUse,
    ReplicaUse,
    Traffic,
)

SILENT_AFTER_S = 5.0
"""Gateways speak twice a second: what one said so long ago is not what it does now."""
BUCKETS = 10
PACED_TOKENS = 32
"""Tokens from which on a request's pace says something."""
PACES_KEPT = 50
ANSWERED = frozenset({"ok", "client_error"})
"""Ends of a request that its engine had a word in, whatever it was."""
REPLICAS_KEPT = 20_000
"""Replicas whose ended requests are counted; those heard of longest ago are dropped."""


class Window:
    """Averages of samples over a span, in ten steps."""

    def __init__(self, span_ms: int) -> None:
        self._bucket_s = span_ms / 1000 / BUCKETS
        self._totals: dict[str, float] = {}
        self._samples = 0
        self._buckets: deque[tuple[float, dict[str, float], list[int]]] = deque()

    def clear(self) -> None:
        """Begin anew."""
        self._totals, self._samples = {}, 0
        self._buckets.clear()

    def add(self, values: Mapping[str, float], now: float) -> None:
        """One sample: what is not in it was 0."""
        if not self._buckets or now - self._buckets[-1][0] >= self._bucket_s:
            self._buckets.append((now, {}, [0]))
        _, bucket, count = self._buckets[-1]
        for name, value in values.items():
            bucket[name] = bucket.get(name, 0.0) + value
            self._totals[name] = self._totals.get(name, 0.0) + value
        count[0] += 1
        self._samples += 1
        while len(self._buckets) > BUCKETS:
            _, old, samples = self._buckets.popleft()
            self._samples -= samples[0]
            for name, value in old.items():
                left = self._totals[name] - value
                if left > 1e-9:
                    self._totals[name] = left
                else:
                    del self._totals[name]

    def total(self, name: str) -> float:
        """The sum of a name's values in the span."""
        return self._totals.get(name, 0.0)

    def average(self, name: str) -> float:
        """The average of a name's values in the span, over all samples."""
        return self._totals.get(name, 0.0) / self._samples if self._samples else 0.0


class _RequestTally:
    """Requests a replica ended."""

    __slots__ = (
        *("answered", "failed", "first_tokens", "first_tokens_ms", "paced", "paces", "requests", "unanswered"),
    )

    def __init__(self) -> None:
        self.requests = self.failed = self.first_tokens = self.paced = self.unanswered = 0
        self.first_tokens_ms = 0.0
        self.paces: deque[float] = deque(maxlen=PACES_KEPT)
        self.answered: float | None = None
        """When it last did, on our clock."""

    def count(self, record: RequestRecord, ended: float) -> None:
        """``ended``: when, on our clock."""
        self.requests += 1
        if record.status == "upstream_error":
            self.failed += 1
            self.unanswered += 1
        elif record.status in ANSWERED or record.first_token_ms is not None:
            self.unanswered = 0
            self.answered = max(self.answered or ended, ended)
        if record.first_token_ms is not None:
            self.first_tokens += 1
            self.first_tokens_ms += _first_token_ms(record)
            answering_ms = record.duration_ms - record.first_token_ms
            whole = record.status == "ok" and record.stream and not record.tokens_estimated
            if whole and record.completion_tokens >= PACED_TOKENS and answering_ms > 0:
                self.paced += 1
                self.paces.append(1000 * (record.completion_tokens - 1) / answering_ms)

    @property
    def tokens_per_s(self) -> float | None:
        """Some wait for others in the engine's batch: the ninth of ten is what it can do."""
        return sorted(self.paces)[9 * (len(self.paces) - 1) // 10] if self.paces else None

    def count_failed(self) -> None:
        """A request another replica had to answer."""
        self.requests += 1
        self.failed += 1
        self.unanswered += 1


def _first_token_ms(record: RequestRecord) -> float:
    """What the replica took: the time in which there was none yet is not its fault."""
    return max(0.0, (record.first_token_ms or 0.0) - record.waited_ms)


class GatewayTraffic:
    """What all gateways together do. Hearing is judged by the listener: after a gap everything begins anew."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._rates: dict[str, tuple[float, GatewayRates]] = {}
        self._offsets: dict[str, int] = {}
        self._last_used: dict[str, datetime] = {}
        self._tallies: OrderedDict[str, _RequestTally] = OrderedDict()
        self._paced: set[str] = set()
        self._short, self._long = Window(SHORT_MS), Window(LONG_MS)
        self._waiting_short, self._waiting_long = Window(SHORT_MS), Window(LONG_MS)
        self._firsts, self._firsts_ms = Window(SHORT_MS), Window(SHORT_MS)
        self._new_firsts: dict[str, float] = {}
        self._new_firsts_ms: dict[str, float] = {}
        self._in_flight: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._since = monotonic()
        self.replicas: Mapping[str, ReplicaUse] = _Replicas(self)
        self.models: Mapping[str, ModelUse] = _Models(self)

    async def start(self, bus: Bus) -> None:
        """Listen. Raises BusAway."""
        await bus.listen(GatewayRates, self.hear)
        await bus.listen(UsageBatch, self.hear_ended)

    async def hear(self, rates: GatewayRates) -> None:
        """What one gateway has in flight and waiting now."""
        self._rates[rates.gateway_id] = (self._monotonic(), rates)
        for model, at in rates.last_used.items():
            known = self._last_used.get(model)
            if known is None or at > known:
                self._last_used[model] = at
        self._add_up()

    async def hear_ended(self, batch: UsageBatch) -> None:
        """Requests that ended at one gateway."""
        if batch.offset <= self._offsets.get(batch.gateway_id, -1):
            return  # sent again because its acknowledgement was lost
        self._offsets[batch.gateway_id] = batch.offset
        now, at = self._monotonic(), datetime.now(UTC)
        for record in batch.records:
            for replica_id in record.failed_replicas:
                self._tally(replica_id).count_failed()
            if record.replica_id is None:
                continue
            ended = self._tally(record.replica_id)
            # Told late by a gateway that could not speak: it says how the engine was then.
            ended.count(record, now - max(0.0, (at - record.closed_at).total_seconds()))
            if ended.paced >= PACES_LEAST:
                self._paced.add(record.replica_id)
            if record.first_token_ms is not None:
                name = record.replica_id
                self._new_firsts[name] = self._new_firsts.get(name, 0) + 1
                self._new_firsts_ms[name] = self._new_firsts_ms.get(name, 0.0) + _first_token_ms(record)

    def _tally(self, replica_id: str) -> _RequestTally:
        ended = self._tallies.get(replica_id)
        if ended is None:
            ended = self._tallies[replica_id] = _RequestTally()
            if len(self._tallies) > REPLICAS_KEPT:
                self._paced.discard(self._tallies.popitem(last=False)[0])
        return ended

    def sample(self) -> None:
        """Once a second: what is so now goes into the windows."""
        now = self._monotonic()
        self._rates = {g: said for g, said in self._rates.items() if now - said[0] < SILENT_AFTER_S}
        self._add_up()
        for window in (self._short, self._long):
            window.add(self._in_flight, now)
        for window in (self._waiting_short, self._waiting_long):
            window.add(self._waiting, now)
        self._firsts.add(self._new_firsts, now)
        self._firsts_ms.add(self._new_firsts_ms, now)
        self._new_firsts, self._new_firsts_ms = {}, {}

    def _add_up(self) -> None:
        self._in_flight, self._waiting = {}, {}
        for _, rates in self._rates.values():
            for replica_id, count in rates.in_flight.items():
                self._in_flight[replica_id] = self._in_flight.get(replica_id, 0) + count
            for model, count in rates.waiting.items():
                self._waiting[model] = self._waiting.get(model, 0) + count

    def traffic(self, listening_since: float) -> Traffic:
        """What gateways do now; windows that began before ``listening_since`` (monotonic seconds) begin anew."""
        if listening_since > self._since:
            self._since = listening_since
            for window in (
                *(self._short, self._long, self._waiting_short, self._waiting_long, self._firsts, self._firsts_ms),
            ):
                window.clear()
        return Traffic(int((self._monotonic() - self._since) * 1000), self.replicas, self.models, self._paced)

    def _replica(self, replica_id: str) -> ReplicaUse:
        ended = self._tallies.get(replica_id)
        firsts = self._firsts.total(replica_id)
        return ReplicaUse(
            in_flight=self._in_flight.get(replica_id, 0),
            busy_short=self._short.average(replica_id),
            busy_long=self._long.average(replica_id),
            ttft_ms=self._firsts_ms.total(replica_id) / firsts if firsts else None,
            requests=ended.requests if ended is not None else 0,
            failed=ended.failed if ended is not None else 0,
            paces=ended.paced if ended is not None else 0,
            tokens_per_s=ended.tokens_per_s if ended is not None else None,
            first_tokens=ended.first_tokens if ended is not None else 0,
            first_tokens_ms=ended.first_tokens_ms if ended is not None else 0.0,
            answered_ms=self._answered_ms(ended),
            unanswered=ended.unanswered if ended is not None else 0,
        )

    def _answered_ms(self, ended: _RequestTally | None) -> int | None:
        if ended is None or ended.answered is None:
            return None
        return int((self._monotonic() - ended.answered) * 1000)

    def _model(self, model: str) -> ModelUse:
        return ModelUse(
            last_used=self._last_used.get(model),
            waiting=self._waiting.get(model, 0),
            waiting_short=self._waiting_short.average(model),
            waiting_long=self._waiting_long.average(model),
        )


class _Replicas(Mapping[str, ReplicaUse]):
    """Worked out when it is asked for: there are thousands, and few matter to a decision."""

    def __init__(self, gateways: GatewayTraffic) -> None:
        self._gateways = gateways

    def __getitem__(self, replica_id: str) -> ReplicaUse:
        return self._gateways._replica(replica_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._gateways._in_flight)

    def __len__(self) -> int:
        return len(self._gateways._in_flight)


class _Models(Mapping[str, ModelUse]):
    def __init__(self, gateways: GatewayTraffic) -> None:
        self._gateways = gateways

    def __getitem__(self, model: str) -> ModelUse:
        return self._gateways._model(model)

    def __iter__(self) -> Iterator[str]:
        return iter(self._gateways._waiting)

    def __len__(self) -> int:
        return len(self._gateways._waiting)
