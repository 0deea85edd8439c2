"""How much text one check holds."""

from __future__ import annotations

import msgspec
import pytest

from libs.events.policy import Segment
from services.gateway.admission.checks import MAX_BYTES, MAX_CHARACTERS, fits
from services.gateway.core.request.policy_text import MAX_SEGMENTS


def of(*texts: str) -> tuple[Segment, ...]:
    return tuple(Segment(path=f"/prompt/{index}", text=text) for index, text in enumerate(texts))


@pytest.mark.parametrize(
    ("segments", "fit"),
    [
        (of(), True),
        (of("a" * MAX_CHARACTERS), True),
        (of("a" * MAX_CHARACTERS, "a"), False),
        (of("🙂" * 1_950_000), True),
        (of("\x1f" * 1_500_000), False),
        (of(*["a"] * MAX_SEGMENTS), True),
        (of(*["a"] * (MAX_SEGMENTS + 1)), False),
        ((Segment(path="/" + "p" * MAX_BYTES, text="a"),), False),
    ],
)
def test_what_fits(segments: tuple[Segment, ...], fit: bool) -> None:
    assert fits(segments) is fit
    assert not fit or len(msgspec.json.encode(segments)) <= MAX_BYTES
