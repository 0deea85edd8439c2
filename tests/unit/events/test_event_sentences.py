"""Every fact on the log has a sentence, and it reads like one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from libs.events import contracts, tag_of
from libs.events.leadership import SchedulerElected
from libs.events.model import ModelScaled, Scaling
from libs.events.node import NodeLost
from libs.events.sentences import known, sentence
from libs.events.usage import RequestRecord, UsageBatch

AT = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("plane", ["evt", "use"])
def test_every_tag_of_the_plane_has_a_sentence(plane: str) -> None:
    tags = {tag_of(contract) for contract in contracts() if contract.plane == plane}

    assert tags
    assert tags - known() == set()


def test_a_lost_node_is_told_with_its_figures() -> None:
    told = sentence(NodeLost(at=AT, machine_id="gpu-07", silent_ms=8200, deadline_ms=8000))

    assert told == "node gpu-07 is lost: silent for 8.2 s, the deadline is 8.0 s"


def test_an_election_names_the_service_and_the_instance() -> None:
    assert sentence(SchedulerElected(at=AT, instance="scheduler-a")) == "scheduler-a leads scheduler now"


def test_one_request_is_told_with_its_tokens() -> None:
    record = RequestRecord(
        request_id="req-1",
        opened_at=AT,
        closed_at=AT,
        key_id="k-1",
        project="demo/demo/demo",
        model_asked="m",
        model="m",
        protocol="openai.chat",
        stream=True,
        status="ok",
        prompt_tokens=12,
        completion_tokens=30,
        first_token_ms=41.4,
        duration_ms=900,
    )

    assert sentence(UsageBatch(gateway_id="gw-1", offset=1, records=(record,))) == (
        "m streamed req-1 for demo/demo/demo: 12 prompt and 30 completion tokens in 0.9 s, first token after 41 ms"
    )


@pytest.mark.parametrize(
    ("least", "most", "wanted"), [(1, None, "1 replica"), (2, None, "2 replicas"), (0, 1, "0 to 1 replicas")]
)
def test_one_replica_is_wanted_and_two_replicas_are(least: int, most: int | None, wanted: str) -> None:
    scaled = ModelScaled(at=AT, model="m", scaling=Scaling(min=least, max=most))

    assert sentence(scaled) == f"model m scaled: {wanted} wanted"
