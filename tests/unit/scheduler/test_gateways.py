"""What the scheduler makes of what gateways tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from libs.events.usage import GatewayRates, RequestRecord, UsageBatch
from services.scheduler.adapters.gateways import GatewayTraffic
from services.scheduler.core.inputs.traffic import ReplicaUse, Traffic

AT = datetime(2026, 11, 29, tzinfo=UTC)


class Ears:
    """Its time is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.gateways = GatewayTraffic(lambda: self.now)
        self._offset = 0

    async def ended(self, **fields: Any) -> None:
        self._offset += 1
        record = RequestRecord(
            **{
                "request_id": f"req-{self._offset}", "opened_at": AT, "closed_at": AT, "key_id": "k",
                "project": "o/t/p", "model_asked": "m", "model": "m", "protocol": "openai.chat", "status": "ok",
                **fields,
            }
        )  # fmt: skip
        await self.gateways.hear_ended(UsageBatch(gateway_id="gw", offset=self._offset, records=(record,)))

    @property
    def traffic(self) -> Traffic:
        self.gateways.sample()
        return self.gateways.traffic(0.0)

    def of(self, replica_id: str) -> ReplicaUse:
        return self.traffic.of(replica_id)


@pytest.fixture
def ears() -> Ears:
    return Ears()


async def test_a_failure_counts_where_it_happened_though_another_replica_answered(ears: Ears) -> None:
    await ears.ended(replica_id="good", failed_replicas=("bad",), attempts=2)
    await ears.ended(replica_id="bad", status="upstream_error")
    good, bad = ears.of("good"), ears.of("bad")
    assert (good.requests, good.failed) == (1, 0)
    assert (bad.requests, bad.failed) == (2, 2)


async def test_waiting_for_a_start_is_no_part_of_the_first_token(ears: Ears) -> None:
    await ears.ended(replica_id="r", first_token_ms=60_040.0, waited_ms=60_000.0, stream=True)
    use = ears.of("r")
    assert use.ttft_ms == pytest.approx(40)
    assert use.first_tokens_ms == pytest.approx(40)


async def test_who_waits_is_added_up_over_gateways_until_they_are_silent(ears: Ears) -> None:
    for gateway_id, count in (("gw-1", 2), ("gw-2", 3)):
        await ears.gateways.hear(GatewayRates(at=AT, gateway_id=gateway_id, waiting={"m": count}))
    assert ears.traffic.of_model("m").waiting == 5
    ears.now += 60
    assert ears.traffic.of_model("m").waiting == 0


async def test_the_pace_is_that_of_whole_streams_with_tokens_enough(ears: Ears) -> None:
    stream = {"replica_id": "r", "stream": True, "first_token_ms": 100.0}
    for number in range(10):
        await ears.ended(**stream, completion_tokens=101, duration_ms=100.0 + 1000.0 * (10 - number))
    for nothing in (
        {"completion_tokens": 31},
        {"completion_tokens": 5000, "status": "cancelled"},
        {"completion_tokens": 5000, "tokens_estimated": True},
        {"completion_tokens": 5000, "stream": False},
    ):
        await ears.ended(**stream | {"duration_ms": 200.0} | nothing)
    use = ears.of("r")
    assert use.paces == 10
    assert use.tokens_per_s == pytest.approx(50)  # the fastest makes 100, and nine are no faster than this


async def test_whether_an_engine_answers_is_known_from_how_requests_ended(ears: Ears) -> None:
    now = datetime.now(UTC)
    assert (ears.of("r").answered_ms, ears.of("r").unanswered) == (None, 0)
    await ears.ended(replica_id="r", closed_at=now)
    ears.now += 2
    assert 2_000 <= (ears.of("r").answered_ms or 0) < 60_000
    await ears.ended(replica_id="r", status="upstream_error", closed_at=now)
    await ears.ended(replica_id="other", failed_replicas=("r",), closed_at=now)
    assert ears.of("r").unanswered == 2
    await ears.ended(replica_id="r", status="cancelled", closed_at=now)
    assert ears.of("r").unanswered == 2, "a client that left before the first token says nothing"
    await ears.ended(replica_id="r", status="client_error", closed_at=now)
    assert ears.of("r").unanswered == 0


async def test_what_a_gateway_tells_late_says_how_it_was_then(ears: Ears) -> None:
    await ears.ended(replica_id="r", closed_at=datetime.now(UTC) - timedelta(minutes=1))
    assert (ears.of("r").answered_ms or 0) >= 60_000
