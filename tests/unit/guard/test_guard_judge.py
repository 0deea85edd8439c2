"""Verdicts: what is refused, what is replaced by what, and where."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.events.policy import Check, DenyRule, InputRules, PolicySpec, SecretsRule, Segment, Verdict
from services.guard.core.detect import Match
from services.guard.core.judge import MAX_CHARACTERS, MAX_EDITS, judge, merge
from services.guard.core.policies import Policy, compile_policy

AWS_KEY = "AKIA" + "IOSFODNN7EXAMPLE"
CARD = "4111 1111 1111 1111"


def policies(*specs: PolicySpec) -> dict[str, Policy]:
    return {spec.name: compile_policy(spec) for spec in specs}


def check(*texts: str, names: tuple[str, ...] = ("p",)) -> Check:
    segments = tuple(Segment(path=f"/messages/{i}/content", text=text) for i, text in enumerate(texts))
    return Check(
        gateway_id="g", check_id="c", request_id="req-1", project="a/b/c", policies=names, segments=segments, reply="i"
    )


def applied(verdict: Verdict, *texts: str) -> list[str]:
    """The texts as the gateway hands them on."""
    out = list(texts)
    for edit in sorted(verdict.edits, key=lambda e: -e.start):
        index = int(edit.path.split("/")[2])
        out[index] = out[index][: edit.start] + edit.replacement + out[index][edit.end :]
    return out


REDACT = PolicySpec(
    name="p",
    mode="enforce",
    input=InputRules(
        secrets=SecretsRule(action="redact"),
        pii={"email": "redact", "card": "redact"},
        deny=(DenyRule(name="zeus", pattern=r"(?i)project\s+zeus", action="redact"),),
    ),
)


def test_a_block_under_enforce_refuses_and_names_the_rule_but_not_the_text() -> None:
    spec = PolicySpec(name="p", mode="enforce", input=InputRules(secrets=SecretsRule()))
    verdict = judge(check(f"use {AWS_KEY} please"), policies(spec))
    assert (verdict.allow, verdict.rule, verdict.policy) == (False, "secrets.aws_access_key", "p")
    assert verdict.edits == ()
    assert AWS_KEY not in repr(verdict)
    assert verdict.findings[0].characters == len(AWS_KEY)


def test_observe_lets_pass_and_says_what_it_saw() -> None:
    spec = PolicySpec(name="p", input=InputRules(secrets=SecretsRule(), pii={"email": "redact"}))
    verdict = judge(check(f"{AWS_KEY} bob@example.com"), policies(spec))
    assert verdict.allow
    assert verdict.edits == ()
    assert [(f.rule, f.action, f.enforced) for f in verdict.findings] == [
        ("secrets.aws_access_key", "block", False),
        ("pii.email", "redact", False),
    ]


def test_flag_lets_pass_untouched_under_enforce() -> None:
    spec = PolicySpec(name="p", mode="enforce", input=InputRules(pii={"email": "flag"}))
    verdict = judge(check("bob@example.com"), policies(spec))
    assert verdict.allow
    assert verdict.edits == ()
    assert verdict.findings[0].enforced


def test_the_same_value_has_the_same_placeholder_in_every_segment() -> None:
    texts = (
        "I am bob@example.com, not ann@example.com",
        "Write to BOB@example.com",
        f"{CARD} or {CARD.replace(' ', '-')}",
    )
    verdict = judge(check(*texts), policies(REDACT))
    assert applied(verdict, *texts) == [
        "I am [EMAIL_1], not [EMAIL_2]",
        "Write to [EMAIL_1]",
        "[CARD_1] or [CARD_1]",
    ]


def test_edits_count_code_points() -> None:
    texts = (f"👋🏽 jürgen: bob@example.com, ça coûte {CARD}€ — {AWS_KEY} 🎉",)
    verdict = judge(check(*texts), policies(REDACT))
    assert applied(verdict, *texts) == ["👋🏽 jürgen: [EMAIL_1], ça coûte [CARD_1]€ — [SECRET_1] 🎉"]


def test_what_overlaps_becomes_one_placeholder_named_by_the_longest() -> None:
    texts = ("dsn postgres://app:pw@db.example.com/orders and app:pw@db.example.com, Project  Zeus",)
    verdict = judge(check(*texts), policies(REDACT))
    assert applied(verdict, *texts) == ["dsn [SECRET_1] and app:[EMAIL_1], [REDACTED_1]"]


def test_several_policies_the_strictest_wins() -> None:
    watch = PolicySpec(name="watch", input=InputRules(pii={"email": "block"}))
    flag = PolicySpec(name="flag", mode="enforce", input=InputRules(pii={"email": "flag"}))
    block = PolicySpec(name="block", mode="enforce", input=InputRules(pii={"email": "block"}))
    known = policies(watch, flag, block, REDACT)
    text = "bob@example.com"
    assert judge(check(text, names=("watch", "flag")), known).edits == ()
    assert applied(judge(check(text, names=("watch", "flag", "p")), known), text) == ["[EMAIL_1]"]
    verdict = judge(check(text, names=("p", "flag", "block")), known)
    assert (verdict.allow, verdict.policy, verdict.edits) == (False, "block", ())
    assert [f.policy for f in verdict.findings] == ["p", "flag", "block"]


def test_what_observes_does_not_redact_for_what_enforces() -> None:
    """Given an enforced card rule and an observed email rule, when both find something, then only the card goes."""
    watch = PolicySpec(name="watch", input=InputRules(pii={"email": "redact"}))
    enforce = PolicySpec(name="enforce", mode="enforce", input=InputRules(pii={"card": "redact"}))
    text = f"bob@example.com {CARD}"
    verdict = judge(check(text, names=("watch", "enforce")), policies(watch, enforce))
    assert applied(verdict, text) == ["bob@example.com [CARD_1]"]


@pytest.mark.parametrize(("fail", "allow"), [("open", True), ("closed", False)])
def test_a_text_too_long_to_judge_fails_as_its_policy_says(fail: str, allow: bool) -> None:
    spec = PolicySpec(name="p", mode="enforce", fail=fail, input=InputRules(secrets=SecretsRule()))  # type: ignore[arg-type]
    verdict = judge(check("x" * (MAX_CHARACTERS + 1)), policies(spec))
    assert verdict.allow is allow
    assert "characters" in (verdict.problem or "")


def test_a_policy_nobody_knows_fails_closed_even_beside_one_that_observes() -> None:
    watch = PolicySpec(name="watch", fail="open", input=InputRules())
    verdict = judge(check("hello", names=("watch", "gone")), policies(watch))
    assert not verdict.allow
    assert verdict.problem == "no policy is named gone"


def test_time_running_out_is_a_problem_and_a_block_found_before_stands() -> None:
    spec = PolicySpec(
        name="p", mode="enforce", fail="open", input=InputRules(secrets=SecretsRule(), pii={"email": "flag"})
    )
    looks = iter([True, False])
    verdict = judge(check(AWS_KEY), policies(spec), lambda: next(looks))
    assert (verdict.allow, verdict.rule, verdict.problem) == (False, "secrets.aws_access_key", None)
    verdict = judge(check("hello"), policies(spec), lambda: False)
    assert verdict.allow
    assert verdict.problem == "the time for judging ran out"


def test_more_to_redact_than_a_verdict_carries_is_a_problem() -> None:
    verdict = judge(check("a@b.io " * (MAX_EDITS + 1)), policies(REDACT))
    assert not verdict.allow
    assert verdict.edits == ()
    assert "more to redact" in (verdict.problem or "")


spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda t: Match(t[0], t[0] + t[1], "r", "X", b"")),
    max_size=12,
)


@given(spans)
def test_merged_spans_cover_the_same_bytes_and_never_overlap(matches: list[Match]) -> None:
    merged = list(merge(matches))
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(merged))
    covered = {i for m in matches for i in range(m.start, m.end)}
    assert {i for start, end, _ in merged for i in range(start, end)} == covered
    assert all(named in matches for _, _, named in merged)


@given(
    st.lists(st.sampled_from(["bob@example.com", CARD, AWS_KEY, "é", " ", "🎉", "a@", "4111", "\n", "Project Zeus"]))
)
def test_nothing_to_redact_is_left_after_the_edits(pieces: list[str]) -> None:
    """Given any text of such pieces, when its edits are applied, then judging it again finds nothing."""
    text = " ".join(pieces)
    verdict = judge(check(text), policies(REDACT))
    assert verdict.allow
    clean = applied(verdict, text)[0]
    assert "bob@example.com" not in clean
    assert CARD not in clean
    assert AWS_KEY not in clean
    assert judge(check(clean), policies(REDACT)).findings == ()


WIDE = PolicySpec(
    name="p",
    mode="enforce",
    input=InputRules(
        secrets=SecretsRule(action="flag"),
        pii={"email": "flag", "card": "flag"},
        deny=(DenyRule(name="slow", pattern=r"(a|b)*c.{200}d(.*e)?", action="flag"),),
    ),
)
HOSTILE = {
    "one letter": "a" * 1000,
    "at signs": "a@" * 500,
    "dots": "a." * 500 + "@",
    "digits": "1111 " * 200,
    "near cards": "4111 1111 1111 1112 " * 50,
    "long digits": "4" * 1000,
    "key beginnings": "sk-ant- AKIA ghp_ xoxb- eyJ" * 40,
    "schemes": "a://b:" * 160,
    "open keys": ("-----BEGIN PRIVATE " + "KEY-----\n") * 35,
    "jwt halves": "eyJ" + "A" * 997,
    "aws words": "aws secret key " * 66,
    "automaton": "abc" * 333,
    "wide characters": "é🎉" * 500,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_makes_judging_slow(text: str) -> None:
    """Given text made to be hard, when there is 200 times as much of it, then judging takes about as much longer.

    Measured in time of the CPU, which a busy machine makes no longer.
    """
    known = policies(WIDE)
    started = time.process_time()
    judge(check(text * 200), known)
    assert time.process_time() - started < 1.5


@pytest.mark.parametrize("text", ["\\n", "\\", "%41", "%F0", "\u200b", "&#64;", "QUtJQQ", "\\u0061", '{"a":"\\\\n'])
def test_no_spelling_makes_judging_go_on_after_its_time(text: str) -> None:
    """Given nothing but spellings, as long as a check may be, when the time is over, then judging ends."""
    known = policies(WIDE)
    started = time.process_time()
    verdict = judge(check(text * (1_000_000 // len(text))), known, lambda: time.process_time() - started < 0.3)
    assert time.process_time() - started < 2
    assert verdict.problem in (None, "the time for judging ran out")


def test_2000_characters_are_judged_within_3_ms() -> None:
    prose = (
        "The quick brown fox, said j. doe (2024-01-02), jumps over 12 lazy dogs; see https://example.com/a?b=c. " * 20
    )
    texts = [prose[:2000], prose[:1900] + f" bob@example.com {CARD} {AWS_KEY}", ("né à Köln: " * 200)[:2000]]
    known = policies(REDACT)
    took = []
    for _ in range(50):
        for text in texts:
            started = time.process_time()
            judge(check(text), known)
            took.append(time.process_time() - started)
    took.sort()
    assert took[len(took) // 2] < 0.003
