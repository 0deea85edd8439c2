"""Budgets as they are written on the command line and in files."""

from __future__ import annotations

import click
import pytest

from cli.declared import read
from cli.failure import Failed
from cli.tenancy import AMOUNT
from libs.events.budget import Budget, money
from libs.events.tenancy import Allowance, ProjectSpec


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("25/month", Budget(amount_micros=25_000_000, period="month")),
        ("0.000001/day", Budget(amount_micros=1, period="day")),
        ("1.25/week", Budget(amount_micros=1_250_000, period="week")),
        ("1000000/total", Budget(amount_micros=10**12, period="total")),
    ],
)
def test_an_amount_and_a_period(text: str, budget: Budget) -> None:
    assert AMOUNT.convert(text, None, None) == budget
    assert AMOUNT.convert(budget, None, None) is budget
    assert AMOUNT.convert(str(budget), None, None) == budget


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("25", "no period"),
        ("25/", "no period"),
        ("25/year", "unknown period 'year': write one of day, week, month, total"),
        ("abc", "'abc' is not a number"),
        ("much/day", "'much' is not a number"),
        ("0/day", "from 0.000001"),
        ("-3/day", "from 0.000001"),
        ("0.0000001/day", "six decimals"),
        ("NaN/day", "from 0.000001"),
        ("Infinity/day", "from 0.000001"),
    ],
)
def test_what_is_none_is_said(text: str, word: str) -> None:
    with pytest.raises(click.BadParameter, match=word):
        AMOUNT.convert(text, None, None)


def test_money_is_said_in_units() -> None:
    said = {0: "0", 1: "0.000001", 12_500: "0.0125", 1_000_000: "1", 25_300_000: "25.3"}
    assert {micros: money(micros) for micros in said} == said


def test_a_file_declares_budgets_and_names_the_line_of_a_slip() -> None:
    text = """
orgs:
  - name: acme
    teams:
      - name: web
        projects:
          - name: shop
            allowance:
              budgets:
                - {amount_micros: 5000000, period: month}
                - {amount_micros: 1, period: total}
"""
    budgets = (Budget(amount_micros=5_000_000, period="month"), Budget(amount_micros=1, period="total"))
    items = read([("f.yaml", text)])
    assert items[-1].spec == ProjectSpec(org="acme", team="web", name="shop", allowance=Allowance(budgets=budgets))
    with pytest.raises(Failed, match=r"f\.yaml:10: unknown key .*did you mean 'period'"):
        read([("f.yaml", text.replace("5000000, period", "5000000, priod"))])
