"""Amounts on the command line, with or without a unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


class Amount(click.ParamType[float]):
    """A number of ``base`` units: plain, or with one of ``units``, which say how many of the base they are."""

    def __init__(self, base: str, units: Mapping[str, float]) -> None:
        self.name = base
        self._units = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The amount in base units. Raises BadParameter."""
        if isinstance(value, int | float):
            return float(value)
        amount = AMOUNT.fullmatch(str(value).strip())
        if amount is None or amount[2] not in ("", *self._units):
            units = ", ".join(self._units)
            self.fail(
                f"{value!r} is not an amount: state {self.name} as a number, or with a unit ({units})", param, ctx
            )
        return float(amount[1]) * self._units.get(amount[2], 1)


WATTS = Amount("watts", {"W": 1, "kW": 1000, "MW": 1_000_000})
