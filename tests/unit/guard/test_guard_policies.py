"""Policies: what is taken, what is refused and with which words; the state the log gives."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.events import Command, decode, encode
from libs.events.commands import DefinePolicy, RemovePolicy, RestartModel
from libs.events.leadership import GuardElected
from libs.events.policy import DenyRule, InputRules, PolicyDefined, PolicyRemoved, PolicySpec, SecretsRule
from libs.events.refusal import Refused
from libs.events.tenancy import Allowance, KeyCreated, KeyRevoked, OrgDefined, OrgSpec
from services.guard.core.policies import LONGEST_PATTERN, BadPattern, compile_pattern, compile_policy
from services.guard.core.state import State, decide, evolve

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def deny(*patterns: str) -> PolicySpec:
    rules = tuple(DenyRule(name=f"r{i}", pattern=pattern) for i, pattern in enumerate(patterns))
    return PolicySpec(name="p", input=InputRules(deny=rules))


@pytest.mark.parametrize(
    ("pattern", "position", "word"),
    [
        ("(abc", 0, "missing )"),
        ("ab(c[)]", 2, "missing )"),
        (r"a\((b", 3, "missing )"),
        ("abc)d", 3, "unexpected )"),
        ("a**", 1, "repetition"),
        ("x|*", 2, "repetition"),
        ("foo[a", 3, "missing ]"),
        ("é[z-a]", 2, "range"),
        ("a{2,1}", 1, "repetition size"),
        ("a{1001}", 1, "repetition size"),
        (r"ok\8", 2, "escape"),
        ("a(?<=a)b", 1, "perl operator"),
        ("a\\", 1, "trailing"),
    ],
)
def test_a_pattern_re2_does_not_take_is_refused_with_its_position(pattern: str, position: int, word: str) -> None:
    with pytest.raises(BadPattern) as caught:
        compile_pattern(pattern)
    assert word in str(caught.value)
    assert caught.value.position == position
    assert f"at position {position}" in str(caught.value)


@given(st.text(max_size=40))
def test_any_pattern_is_taken_or_refused_with_a_position_inside_it(pattern: str) -> None:
    position = None
    try:
        compile_pattern(pattern)
    except BadPattern as why:
        position = why.position
    assert position is None or 0 <= position < len(pattern)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("a|", "matches the empty text"),
        ("", "matches the empty text"),
        ("x" * (LONGEST_PATTERN + 1), "make several rules"),
        (r"\pL{9}", "instructions"),
        (r"(\pL{100}){9}", "too large"),
    ],
)
def test_a_pattern_that_would_do_harm_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(BadPattern, match=said):
        compile_pattern(pattern)


def test_every_problem_of_a_policy_is_said_at_once_with_its_path() -> None:
    spec = PolicySpec(
        name="No Name",
        input=InputRules(
            deny=(
                DenyRule(name="a", pattern="("),
                DenyRule(name="a", pattern="fine"),
                DenyRule(name="B", pattern="[z"),
            )
        ),
    )
    with pytest.raises(Refused) as caught:
        compile_policy(spec)
    problems = {p.path: p.message for p in caught.value.problems}
    assert set(problems) == {
        "name",
        "input.deny[0].pattern",
        "input.deny[1].name",
        "input.deny[2].name",
        "input.deny[2].pattern",
    }
    assert "at position 0" in problems["input.deny[0].pattern"]
    assert "stands before" in problems["input.deny[1].name"]


def test_defining_a_policy_is_an_event_and_defining_it_again_is_nothing() -> None:
    spec = deny("x")
    event = decide(State(), DefinePolicy(spec=spec), "c-1", NOW)
    assert event == PolicyDefined(at=NOW, policy="p", spec=spec)
    state = evolve(State(), event, 1)
    again = decode(encode(DefinePolicy(spec=spec)))
    assert isinstance(again, Command)
    assert decide(state, again, "c-2", NOW) is None
    changed = decide(state, DefinePolicy(spec=deny("y")), "c-3", NOW)
    assert isinstance(changed, PolicyDefined)


def test_a_policy_with_a_bad_pattern_is_not_defined() -> None:
    with pytest.raises(Refused, match=r"input\.deny\[0\]\.pattern.*position 2"):
        decide(State(), DefinePolicy(spec=deny("ab(")), "c-1", NOW)


def test_removing() -> None:
    state = evolve(State(), PolicyDefined(at=NOW, policy="p", spec=deny("x")), 1)
    event = decide(state, RemovePolicy(policy="p"), "c-1", NOW)
    assert event == PolicyRemoved(at=NOW, policy="p")
    assert evolve(state, event, 2).policies == {}
    with pytest.raises(Refused, match="no policy named 'q'; there is: p"):
        decide(state, RemovePolicy(policy="q"), "c-2", NOW)


def test_a_policy_somebody_relies_on_stays_until_it_is_taken_off() -> None:
    """Given a key and an organisation that name a policy, when it is removed, then both are named in the refusal."""
    state = evolve(State(), PolicyDefined(at=NOW, policy="p", spec=deny("x")), 1)
    allowance = Allowance(policies=("p",))
    state = evolve(state, OrgDefined(at=NOW, org="acme", spec=OrgSpec(name="acme", allowance=allowance)), 2)
    key = KeyCreated(at=NOW, key_id="k-1", key_sha256="00", shown="sk-", project="a/b/c", allowance=allowance)
    state = evolve(state, key, 3)
    with pytest.raises(Refused, match="applies to key k-1, org acme"):
        decide(state, RemovePolicy(policy="p"), "c-1", NOW)
    state = evolve(state, OrgDefined(at=NOW, org="acme", spec=OrgSpec(name="acme")), 4)
    state = evolve(state, KeyRevoked(at=NOW, key_id="k-1"), 5)
    assert decide(state, RemovePolicy(policy="p"), "c-1", NOW) == PolicyRemoved(at=NOW, policy="p")


def test_commands_of_others_are_refused() -> None:
    with pytest.raises(Refused, match="takes no command RestartModel"):
        decide(State(), RestartModel(model="m"), "c-1", NOW)


def test_an_election_is_remembered_by_its_sequence() -> None:
    assert evolve(State(), GuardElected(at=NOW, instance="g-1"), 7).election == 7


def test_every_kind_of_rule_is_compiled() -> None:
    spec = PolicySpec(
        name="p",
        input=InputRules(secrets=SecretsRule(), pii={"email": "flag", "card": "redact"}, deny=deny("x").input.deny),
    )
    assert [rule.detector for rule in compile_policy(spec).rules] == ["secrets", "pii.email", "pii.card", "deny x"]
