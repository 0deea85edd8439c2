"""Reconciling finds what it is for: each ledger here is wrong in one way, and that one is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from libs.events.tenancy import Price
from libs.testing.ledger import LedgerRow
from libs.testing.traffic import Answer

from .load import TENANTS, Asked
from .reconcile import differences, over_rpm, over_tpm, overspent
from .story import FREEZES_S, parts, story

AT = datetime(2026, 11, 1, tzinfo=UTC)
HALF_A_SECOND = timedelta(seconds=0.5)
STEADY = TENANTS[0]
KEYS = {tenant.name: f"k-{tenant.name}" for tenant in TENANTS}
PRICES = {"talk": Price(model="talk", prompt_micros=1000, completion_micros=3000)}
ROW = LedgerRow("r-1", AT, AT, "k-steady", "acme/lab/web", "talk", "ok", 5, 0, 7, False, 1, 26, "gw-1")
COMPLETE = Answer("r-1", 200, 7, 5, 7, finished=True)


def found(answers: list[Answer], rows: list[LedgerRow], manner: str = "stream") -> list[str]:
    asked = [Asked(STEADY, manner, answer) for answer in answers]  # type: ignore[arg-type]
    return list(differences(asked, rows, KEYS, PRICES))


@pytest.mark.parametrize(
    ("answer", "row"),
    [
        (COMPLETE, ROW),
        (replace(COMPLETE, finished=False, error="left", tokens=3), replace(ROW, status="cancelled")),
        (replace(COMPLETE, finished=False, error="closed", tokens=3), replace(ROW, status="cut")),
        (Answer("r-1", 402, error="no room"), replace(ROW, status="refused_budget", cost_micros=0)),
    ],
)
def test_what_is_right_has_no_difference(answer: Answer, row: LedgerRow) -> None:
    assert found([answer], [row]) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: found([COMPLETE], []), "not in the ledger"),
        (lambda: found([COMPLETE], [ROW, ROW]), "have one already"),
        (lambda: found([COMPLETE], [replace(ROW, completion_tokens=8, cost_micros=29)]), "was told (5, 7) tokens"),
        (lambda: found([COMPLETE], [replace(ROW, status="cancelled")]), "the row cancelled"),
        (lambda: found([COMPLETE], [replace(ROW, cost_micros=25)]), "costs 25 instead of 26"),
        (lambda: found([COMPLETE], [replace(ROW, key_id="k-bots")]), "charged to k-bots"),
        (lambda: found([COMPLETE], [ROW, replace(ROW, request_id="r-2")]), "that no client knows"),
        (lambda: found([COMPLETE], [ROW], "secret"), "a secret went to an engine"),
        (lambda: found([replace(COMPLETE, error="left", tokens=9)], [ROW]), "the client had 9 tokens"),
        (lambda: found([Answer("r-1", 500, error="oh")], [ROW]), "an unexpected status"),
        (lambda: found([Answer("r-1", 429)], [replace(ROW, status="ok")]), "its row says ok"),
    ],
)
def test_a_difference_is_named(wrong: Callable[[], list[str]], said: str) -> None:
    told = wrong()
    assert len(told) == 1
    assert said in told[0]


def test_a_row_of_a_request_that_never_heard_its_id_is_no_difference() -> None:
    assert found([Answer("", 0, error="reset")], [ROW]) == []


def test_budgets_and_limits_are_held_to_what_is_promised() -> None:
    rows = [replace(ROW, request_id=f"r-{n}", cost_micros=100) for n in range(10)]
    assert not list(overspent(rows, {"k-steady": 1000, "acme/lab": 1000}))
    assert len(list(overspent(rows, {"k-steady": 999, "acme/lab": 999}))) == 2
    burst = [replace(ROW, opened_at=AT + n * HALF_A_SECOND) for n in range(62)]
    assert not list(over_rpm(burst, "k-steady", 60))
    assert len(list(over_rpm(burst, "k-steady", 59))) == 1
    used = [replace(ROW, opened_at=AT + 2 * n * HALF_A_SECOND, closed_at=AT + 2 * n * HALF_A_SECOND) for n in range(5)]
    assert not list(over_tpm(used, "k-steady", 37)), "three have ended more than a second before the last begins"
    assert len(list(over_tpm(used, "k-steady", 36))) == 1


def test_a_story_follows_from_its_seed_and_hits_everything() -> None:
    agents = ("nodeagent@sim-1", "nodeagent@sim-2")
    told = story(7, 300, agents)
    assert told == story(7, 300, agents) != story(8, 300, agents)
    assert all(blow.at_s + blow.for_s <= 300 for blow in told)
    every = [blow for seed in range(10) for blow in story(seed, 300, agents)]
    assert {(blow.what, blow.part) for blow in every} == {(w, p) for w in ("kill", "freeze") for p in parts(agents)}
    assert len({blow.at_s for blow in every}) < len(every), "some fall together"
    assert max(blow.for_s for blow in every) > FREEZES_S[2][0]
