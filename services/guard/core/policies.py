"""Policies ready to be applied, and what is wrong with those that are not."""

from __future__ import annotations

import re
from typing import NamedTuple

import re2

from libs.events.commands import Problem
from libs.events.policy import Action, DenyRule, PolicySpec
from libs.events.refusal import Refused

from .detect import Detector, cards, denied, emails, secrets

NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}\Z")
MAX_DENY_RULES = 100
LONGEST_PATTERN = 1_000
"""Characters of a pattern. An operator who needs more has several rules."""
LARGEST_PROGRAM = 5_000
"""RE2 instructions (a ``\\pL`` has 1,200). What RE2's automaton cannot hold it steps through one instruction at a time
for every byte: this keeps the worst text at two or three microseconds a byte."""

_options = re2.Options()
_options.log_errors = False


class Rule(NamedTuple):
    """What is looked for, and what is done where it is found."""

    detector: str
    """What finds it: ``secrets``, ``pii.email``, ``deny PATTERN``. Equal detectors run once for all policies."""
    find: Detector
    action: Action
    name: str | None
    """The rule's name in findings; None: the detector names each match."""


class Policy(NamedTuple):
    """A policy, compiled."""

    spec: PolicySpec
    rules: tuple[Rule, ...]


class BadPattern(Exception):
    """Not a pattern that can be used. ``position`` is the index of the character where it goes wrong, if at one."""

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} at position {position}")
        self.position = position


def compile_policy(spec: PolicySpec) -> Policy:
    """A policy ready to judge by. Raises Refused, which names fields like ``input.deny[0].pattern``."""
    problems: list[Problem] = []

    def wrong(path: str, message: str) -> None:
        problems.append(Problem(path=path, message=message))

    if not NAME.match(spec.name):
        wrong("name", f"{spec.name!r} is not a name: lower-case letters, digits, '.', '_' and '-', 63 at most")
    rules: list[Rule] = []
    if spec.input.secrets is not None:
        rules.append(Rule("secrets", secrets, spec.input.secrets.action, None))
    for kind, action in spec.input.pii.items():
        rules.append(Rule(f"pii.{kind}", emails if kind == "email" else cards, action, f"pii.{kind}"))
    if len(spec.input.deny) > MAX_DENY_RULES:
        wrong("input.deny", f"{len(spec.input.deny)} rules, {MAX_DENY_RULES} at most: join patterns with '|'")
    names: set[str] = set()
    for index, deny in enumerate(spec.input.deny[:MAX_DENY_RULES]):
        path = f"input.deny[{index}]"
        if not NAME.match(deny.name):
            wrong(f"{path}.name", f"{deny.name!r} is not a name: lower-case letters, digits, '.', '_', '-', 63 at most")
        elif deny.name in names:
            wrong(f"{path}.name", f"a rule named {deny.name!r} stands before this one: give each its own name")
        names.add(deny.name)
        try:
            rules.append(_deny(deny))
        except BadPattern as why:
            wrong(f"{path}.pattern", str(why))
    if problems:
        raise Refused(problems)
    return Policy(spec, tuple(rules))


def _deny(rule: DenyRule) -> Rule:
    compiled = compile_pattern(rule.pattern)
    return Rule(f"deny {rule.pattern}", denied(rule.name, compiled), rule.action, f"deny.{rule.name}")


def compile_pattern(pattern: str) -> re2._Regexp:
    """An operator's pattern as RE2. Raises BadPattern."""
    if len(pattern) > LONGEST_PATTERN:
        raise BadPattern(
            f"the pattern has {len(pattern)} characters, {LONGEST_PATTERN} at most: make several rules of it"
        )
    try:
        compiled = re2.compile(pattern.encode(), _options)
    except re2.error as error:
        reason = _reason(error)
        raise BadPattern(f"not an RE2 pattern: {reason}", _position(pattern, reason)) from None
    if compiled.programsize > LARGEST_PROGRAM:
        raise BadPattern(
            f"the pattern is {compiled.programsize} instructions long, {LARGEST_PROGRAM} at most: "
            "use smaller repetition counts, or make several rules of it"
        )
    if compiled.search(b"") is not None:
        raise BadPattern(
            "the pattern matches the empty text, so it would be found in everything: make a part of it required"
        )
    return compiled


def _reason(error: Exception) -> str:
    reason = error.args[0]
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _position(pattern: str, reason: str) -> int | None:
    """RE2 says which piece is wrong but not where: where the shortest beginning ends that is wrong in the same way.

    For a parenthesis it repeats the whole pattern, so those are counted here.
    """
    if reason.startswith(("missing )", "unexpected )")):
        return _parenthesis(pattern)
    if reason.startswith("trailing"):
        return len(pattern) - 1
    piece = reason.partition(": ")[2]
    if not piece:
        return None  # it is too large as a whole
    for end in range(1, len(pattern) + 1):
        try:
            re2.compile(pattern[:end].encode(), _options)
        except re2.error as error:
            at = pattern.rfind(piece, 0, end)
            if _reason(error) == reason and at >= 0:
                return at
    return max(0, pattern.find(piece))


def _parenthesis(pattern: str) -> int:
    """Where the first closing parenthesis without an opening one stands, else the last opening one left open."""
    opened: list[int] = []
    in_class = False
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            index += 1
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
            # A closing bracket that comes first is a member of the class.
            index += len(re.match(r"\^?\]?", pattern[index + 1 :]).group())  # type: ignore[union-attr]
        elif character == "(":
            opened.append(index)
        elif character == ")":
            if not opened:
                return index
            opened.pop()
        index += 1
    return opened[-1] if opened else 0
