"""Each level of the tree only narrows what stands above it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libs.events.tenancy import Allowance
from services.accounting.core.narrowing import EVERYTHING, Effective, narrow, problems_of

models = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True).map(tuple)
rates = st.one_of(st.none(), st.integers(1, 1000))
allowances = st.builds(
    Allowance,
    models=st.one_of(st.none(), models),
    rpm=rates,
    tpm=rates,
    policies=st.lists(st.sampled_from(["p", "q"]), unique=True).map(tuple),
)


def tree(levels: list[Allowance]) -> Effective:
    effective = EVERYTHING
    for number, allowance in enumerate(levels):
        effective = narrow(effective, allowance, f"level {number}", f"account {number}")
    return effective


def wider(one: int | None, other: int | None) -> bool:
    return other is not None and (one is None or one > other)


@given(st.lists(allowances, max_size=4), allowances)
def test_a_level_never_widens(levels: list[Allowance], last: Allowance) -> None:
    above = tree(levels)
    below = narrow(above, last, "last", "last account")
    assert not wider(below.rpm, above.rpm)
    assert not wider(below.tpm, above.tpm)
    assert above.models is None or (below.models is not None and set(below.models) <= set(above.models))
    assert set(below.policies) == set(above.policies) | set(last.policies)


@given(st.lists(allowances, max_size=4))
def test_the_result_is_within_every_level(levels: list[Allowance]) -> None:
    effective = tree(levels)
    for level in levels:
        assert not wider(effective.rpm, level.rpm)
        assert not wider(effective.tpm, level.tpm)
        assert level.models is None or set(effective.models or ()) <= set(level.models)
        assert set(level.policies) <= set(effective.policies)


@given(st.lists(allowances, max_size=4), allowances)
def test_what_is_accepted_holds_as_written_and_what_is_refused_would_not(
    levels: list[Allowance], last: Allowance
) -> None:
    above = tree(levels)
    below = narrow(above, last, "last", "last account")
    as_written = (
        (last.rpm is None or below.rpm == last.rpm)
        and (last.tpm is None or below.tpm == last.tpm)
        and (last.models is None or below.models == last.models)
    )
    assert as_written == (problems_of(above, last, "allowance") == [])


def test_every_problem_is_named_at_once_with_what_is_allowed_and_by_whom() -> None:
    above = narrow(EVERYTHING, Allowance(models=("a",), rpm=10, tpm=100), "organisation acme", "acme/*")
    wrong = Allowance(models=("a", "b", "B!"), rpm=11, tpm=0, policies=("p", "p"))
    problems = {problem.path: problem.message for problem in problems_of(above, wrong, "spec.allowance")}
    assert problems["spec.allowance.rpm"] == (
        "11 requests a minute is more than the 10 that organisation acme allows; give at most 10"
    )
    assert "0 tokens a minute is not possible" in problems["spec.allowance.tpm"]
    assert "organisation acme allows (a)" in problems["spec.allowance.models[1]"]
    assert "twice" in problems["spec.allowance.policies[1]"]
    assert "spec.allowance.models[2]" in problems


def test_the_result_names_the_level_that_set_each_part() -> None:
    effective = tree([Allowance(rpm=100, models=("a", "b")), Allowance(rpm=50), Allowance(tpm=7)])
    assert effective.rpm_set_by == "level 1"
    assert effective.tpm_set_by == "level 2"
    assert effective.models_set_by == "level 0"
