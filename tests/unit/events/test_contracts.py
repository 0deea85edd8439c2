from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.events import (
    BadPayload,
    Event,
    UnknownTag,
    contract_of,
    contracts,
    decode,
    decode_token,
    encode,
    encode_token,
    pattern_of,
    registered,
    state_hash,
    subject_of,
    tag_of,
    upcast,
)
from libs.events.contract import TAG, _by_tag, _upcasts
from libs.events.document import page
from libs.events.node import NodeLost
from tests.golden.record import SAMPLES, SHAPES, Shapes, every_shape, widens, with_additions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("contract", list(contracts()), ids=tag_of)
def test_every_tag_has_a_golden_sample_that_still_reads_the_same(contract: type[Any]) -> None:
    path = SAMPLES / f"{tag_of(contract)}.json"
    assert path.exists(), f"{path.name} is missing: run `python -m tests.golden.record` (only for a new tag)"
    payload = path.read_bytes()
    message = decode(payload)
    assert type(message) is contract
    again = json.loads(encode(message))
    stored = json.loads(payload)
    assert {name: again[name] for name in stored} == stored


def test_no_golden_sample_is_left_without_a_contract_or_an_upcast() -> None:
    for path in SAMPLES.glob("*.json"):
        decode(path.read_bytes())


def test_recorded_fields_keep_their_type_and_default_and_what_is_new_is_recorded() -> None:
    recorded: Shapes = json.loads(SHAPES.read_text())
    current = every_shape()
    together = with_additions(recorded, current)
    for name, fields in together.items():
        assert fields == current.get(name), (
            f"{name}: a stored field changed; that needs a new version of the tag. Where it has not landed yet: "
            "`git checkout tests/golden/shapes.json`, delete its new samples, `make docs`"
        )
    assert recorded == together, "run `python -m tests.golden.record` (only adds)"


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        ("`a` or `b`", "`a` or `b` or `c`", True),
        ("`a`", "`c` or `a`", True),
        ("list of `a` or `b`", "list of `b` or `a` or `c`", True),
        ("map of `a` to integer", "map of `a` or `b` to integer", True),
        ("`a` or `b`", "`a`", False),
        ("`a` or `b`", "`a` or `c`", False),
        ("`a`", "text", False),
        ("`a` or [Part](#part)", "`a` or `b`", False),
        ("integer", "number", False),
        ("text", "text", True),
    ],
)
def test_only_values_may_be_added_to_an_enumeration(before: str, after: str, may: bool) -> None:
    assert widens(before, after) is may


def test_a_value_added_to_an_enumeration_is_recorded_and_one_taken_away_is_not() -> None:
    recorded: Shapes = {"x.y.v1": {"phase": ["`a` or `b`", "a"]}}
    wider: Shapes = {"x.y.v1": {"phase": ["`a` or `b` or `c`", "a"], "since": ["time", None]}}
    assert with_additions(recorded, wider) == wider
    assert with_additions(wider, recorded) == wider
    other_default: Shapes = {"x.y.v1": {"phase": ["`a` or `b` or `c`", "c"]}}
    assert with_additions(recorded, other_default) == recorded


@pytest.mark.parametrize("contract", list(contracts()), ids=tag_of)
def test_a_subject_says_what_happened_to_what(contract: type[Any]) -> None:
    message = decode((SAMPLES / f"{tag_of(contract)}.json").read_bytes())
    subject = subject_of(message)
    assert subject.startswith(f"llmgw.{contract.plane}.")
    assert TAG.match(tag_of(contract))
    pattern = pattern_of(contract).split(".")
    assert len(pattern) == len(subject.split("."))
    assert all(p in ("*", s) for p, s in zip(pattern, subject.split("."), strict=True))


def test_no_two_contracts_share_a_subject() -> None:
    patterns = [pattern_of(contract) for contract in contracts()]
    assert len(patterns) == len(set(patterns))


@given(st.text(min_size=1))
def test_any_text_fits_in_a_token_and_comes_back(text: str) -> None:
    token = encode_token(text) if all(not 0xD800 <= ord(c) <= 0xDFFF for c in text) else "x"
    if token != "x":
        assert decode_token(token) == text
    assert not set(token) & set(" .*>\t\r\n")


def test_the_events_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "events.md").read_text() == page(), "run `make docs`"


def test_the_events_page_names_every_tag() -> None:
    text = page()
    assert all(f"### {tag_of(contract)}\n" in text for contract in contracts())


def test_unknown_and_broken_messages_are_told_apart() -> None:
    with pytest.raises(UnknownTag, match=r"node\.lost\.v9"):
        decode(b'{"type":"node.lost.v9"}')
    with pytest.raises(BadPayload, match="machine_id"):
        decode(b'{"type":"node.lost.v1","at":"2026-01-01T00:00:00Z"}')
    with pytest.raises(BadPayload):
        decode(b"not json")


def test_a_newer_senders_unknown_fields_are_ignored() -> None:
    message = NodeLost(at=NOW, machine_id="m", silent_ms=1, deadline_ms=2)
    payload = encode(message)[:-1] + b',"new_in_v1":1}'
    assert decode(payload) == message


def test_an_old_version_passes_through_its_upcasts() -> None:
    class Moved(Event, frozen=True, kw_only=True, tag="test_thing.moved.v2"):
        ids = ("thing",)
        thing: str
        metres: float

    registered(Moved)

    @upcast("test_thing.moved.v1", "test_thing.moved.v2")
    def _(fields: dict[str, Any]) -> dict[str, Any]:
        return {"at": fields["at"], "thing": fields["thing"], "metres": fields["feet"] * 0.3048}

    try:
        old = b'{"type":"test_thing.moved.v1","at":"2026-01-01T00:00:00Z","thing":"x","feet":10}'
        assert decode(old) == Moved(at=NOW, thing="x", metres=3.048)
        assert contract_of("test_thing.moved.v2") is Moved
    finally:
        del _by_tag["test_thing.moved.v2"], _upcasts["test_thing.moved.v1"]


def test_equal_states_hash_equally_however_they_were_reached() -> None:
    assert state_hash({"a": 1, "b": {"x", "y"}}) == state_hash({"b": {"y", "x"}, "a": 1})
    assert state_hash({"a": 1}) != state_hash({"a": 2})
