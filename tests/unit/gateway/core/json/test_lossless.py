"""Half characters and numbers, through decoders that take neither."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.gateway.core.json import lossless
from services.gateway.core.json.lossless import SurrogateHalves, repaired, with_marks


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (rb'"half \ud83d end"', "half \ufffd end"),
        (rb'"half \uDE00"', "half \ufffd"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud83d"', "\\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (b'"\xff\xc3"', "\ufffd\ufffd"),
    ],
)
def test_half_a_character_becomes_a_replacement(given: bytes, wanted: str) -> None:
    assert lossless.decoded(repaired(given)) == wanted
    halves = SurrogateHalves()
    assert halves.joined(lossless.decoded(with_marks(given))) + halves.rest() == wanted


def test_what_is_whole_is_the_same_object() -> None:
    body = '{"a": "\\ud83d\\ude00 é"}'.encode()
    assert repaired(body) == body
    assert repaired(b"{}") is not None


@given(st.text(st.characters(codec="utf-8"), max_size=9), st.lists(st.integers(0, 20), max_size=4))
@example("\U0010f800", [])
@example("\\\U0010ffff", [1])
@example("\\udbfe\\udc00", [])
def test_a_text_cut_between_halves_is_put_together(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le")
    points = sorted({0, len(units), *(2 * (cut % (len(units) // 2 + 1)) for cut in cuts)})
    halves = SurrogateHalves()
    out = ""
    for begin, end in itertools.pairwise(points):
        piece = json.dumps(units[begin:end].decode("utf-16-le", "surrogatepass"))
        out += halves.joined(lossless.decoded(with_marks(piece.encode())))
    assert out + halves.rest() == text


@pytest.mark.parametrize("text", ["\U0010f800", "a\U0010ffffb", "\\udbfe\\udc00"])
def test_a_character_that_halves_are_carried_as_arrives(text: str) -> None:
    for body in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        assert SurrogateHalves().joined(lossless.decoded(with_marks(body.encode()))) == text


def test_a_value_with_half_a_character_can_be_encoded() -> None:
    assert lossless.decoded(lossless.encoded({"a\ud83d": ["\ude00", 1]})) == {"a\ufffd": ["\ufffd", 1]}
