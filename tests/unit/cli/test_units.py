"""Amounts with units on the command line."""

from __future__ import annotations

import click
import pytest

from cli.units import SECONDS, WATTS


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("250 ms", 0.25), ("0", 0)]
)
def test_times(text: str, seconds: float) -> None:
    assert SECONDS.convert(text, None, None) == seconds


@pytest.mark.parametrize(("text", "watts"), [("5000", 5000), ("5kW", 5000), ("1.2 MW", 1_200_000)])
def test_powers(text: str, watts: float) -> None:
    assert WATTS.convert(text, None, None) == watts


@pytest.mark.parametrize("text", ["", "m", "10x", "-3", "1e3", "5 k W"])
def test_what_is_no_amount_is_told_with_the_units(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        SECONDS.convert(text, None, None)
    assert caught.value.message == (
        f"{text!r} is no amount: state seconds as a number, or with a unit (ms, s, m, h, d)"
    )
