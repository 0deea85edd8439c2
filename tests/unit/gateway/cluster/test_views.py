"""Whether a model can be answered now, or is to be woken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from libs.events.views import Endpoint, Route
from services.gateway.cluster.views import ServedModel, Target
from services.gateway.core.routing.circuit_breaker import CONSECUTIVE
from services.gateway.core.routing.load_balancing import Share

AT = datetime(2026, 1, 1, tzinfo=UTC)


def served(**fields: Any) -> tuple[ServedModel, Target]:
    endpoint = Endpoint(replica_id="r", url="http://127.0.0.1:1", machine_id="a", served_name="m", **fields)
    nobody: Any = None
    target = Target(endpoint, nobody, b"", nobody)
    route = Route(model="m", context_length=4096, created_at=AT, endpoints=(endpoint,), on_demand=True)
    return ServedModel(route, (target,), Share(0.5)), target


def test_an_engine_whose_machine_is_silent_serves_until_it_does_not_answer() -> None:
    model, target = served(silent=True)
    assert model.ready
    assert not model.wakeable
    for _ in range(CONSECUTIVE):
        target.breaker.failed(0.0)
    assert not model.ready
    assert model.wakeable, "whoever asks waits for its successor"


def test_an_engine_that_is_heard_and_rests_is_not_woken() -> None:
    model, target = served()
    for _ in range(CONSECUTIVE):
        target.breaker.failed(0.0)
    assert model.ready
    assert not model.wakeable
