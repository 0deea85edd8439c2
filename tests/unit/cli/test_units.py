"""Amounts with units on the command line."""

from __future__ import annotations

import click
import pytest

from cli.units import WATTS


@pytest.mark.parametrize(("text", "watts"), [("5000", 5000), ("5kW", 5000), ("1.2 MW", 1_200_000)])
def test_powers(text: str, watts: float) -> None:
    assert WATTS.convert(text, None, None) == watts


@pytest.mark.parametrize("text", ["", "m", "10x", "-3", "1e3", "5 k W"])
def test_what_is_no_amount_is_told_with_the_units(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        WATTS.convert(text, None, None)
    assert caught.value.message == f"{text!r} is not an amount: state watts as a number, or with a unit (W, kW, MW)"
