from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from libs.bus.nats_reader import from_delivery
from libs.bus.topology import CONSUMERS, STREAMS, differences

RECORDED = Path(__file__).parents[1] / "golden" / "topology.json"


def current() -> dict[str, Any]:
    return {s.name: s.config for s in STREAMS} | {f"consumer {c.durable}": c.config for c in CONSUMERS.values()}


def test_no_option_of_a_stream_bucket_or_consumer_changes_by_accident() -> None:
    """Each is there for a reason; a deliberate change is made in ``tests/golden/topology.json`` too."""
    assert json.loads(json.dumps(current())) == json.loads(RECORDED.read_text())


def test_prompts_are_in_memory_only() -> None:
    checks = next(s for s in STREAMS if s.name == "CHECKS")
    assert checks.config["storage"] == "memory"
    others = [s.name for s in STREAMS if s.name != "CHECKS" and "llmgw.chk.>" in s.config["subjects"]]
    assert others == []


@pytest.mark.parametrize(
    ("wanted", "found", "wrong"),
    [
        ({"max_age": 5}, {"max_age": 5}, []),
        ({"max_age": 5}, {}, ["max_age is 0 instead of 5"]),
        ({"deny_delete": True}, {"deny_delete": False}, ["deny_delete is False instead of True"]),
        ({"filter_subjects": ["a"]}, {"filter_subject": "a"}, []),
        ({"subjects": ["a", "b"]}, {"subjects": ["b", "a"]}, []),
    ],
)
def test_what_the_server_did_not_take_is_named(wanted: dict[str, Any], found: dict[str, Any], wrong: list[str]) -> None:
    assert differences(wanted, found) == wrong


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.EVENTS.reader.2.17.9.1767225600000000000.3",
        "$JS.ACK.hub.ACCHASH.EVENTS.reader.2.17.9.1767225600000000000.3",
        "$JS.ACK.hub.ACCHASH.EVENTS.reader.2.17.9.1767225600000000000.3.random",
    ],
)
def test_both_forms_of_acknowledgement_subjects_are_read(reply: str) -> None:
    class Message:
        subject, data, headers = "s", b"", None

    message = Message()
    message.reply = reply  # type: ignore[attr-defined]
    raw = from_delivery(message)  # type: ignore[arg-type]
    assert (raw.delivered, raw.sequence, raw.count, raw.pending) == (2, 17, 9, 3)
    assert raw.time is not None
    assert raw.time.year == 2026
