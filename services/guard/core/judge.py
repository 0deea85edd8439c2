"""Judging a check: what the policies that apply to it say about its text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from libs.events.policy import Action, Check, Finding, Segment, Span, Verdict

from .decodings import OutOfTime, decodings
from .detect import Detector, Match
from .placeholders import Edit, keep_json
from .policies import Policy, Rule
from .search import search
from .text import Text

MAX_CHARACTERS = 2_000_000
"""Of all segments of a check together: about four contexts of 128 k tokens. A longer check counts as unjudged."""
MAX_EDITS = 10_000
"""A verdict stays well under the bus's largest message."""


class Unjudged(Exception):
    """Why a check could not be judged to the end."""


class _Ask(NamedTuple):
    """What one policy wants done about the matches of one detector."""

    policy: Policy
    rule: Rule


class _Tally:
    __slots__ = ("characters", "count")

    def __init__(self) -> None:
        self.count = 0
        self.characters = 0


def judge(check: Check, policies: Mapping[str, Policy], keep_going: Callable[[], bool] = lambda: True) -> Verdict:
    """The verdict on a check.

    Every policy named in the check is applied; a block by one of them blocks, a redaction by one of them redacts.
    Policies that only observe add findings and nothing else. ``keep_going`` is asked between steps; once it says
    no the check counts as unjudged.

    A check that could not be judged to the end carries ``problem``; ``allow`` is then true only if every
    enforced policy concerned fails open. A block found before that is the verdict: nothing is left open then.
    """
    names = tuple(dict.fromkeys(check.policies))
    applied = [policies[name] for name in names if name in policies]
    unknown = [name for name in names if name not in policies]
    tallies: dict[tuple[str, str, Action], _Tally] = {}
    redactions: dict[str, tuple[Text, list[Match]]] = {}
    problem = f"no policy is named {', '.join(unknown)}" if unknown else None
    try:
        size = sum(len(segment.text) for segment in check.segments)
        if size > MAX_CHARACTERS:
            raise Unjudged(f"the text has {size} characters, {MAX_CHARACTERS} at most are judged")
        for segment in check.segments:
            _look(segment, applied, tallies, redactions, keep_going)
        if sum(len(matches) for _, matches in redactions.values()) > MAX_EDITS:
            raise Unjudged(f"there is more to redact than {MAX_EDITS} places")
    except OutOfTime:
        problem = "the time for judging ran out"
    except Unjudged as why:
        problem = str(why)

    findings = _findings(applied, tallies)
    refused_by = next((f for f in findings if f.enforced and f.action == "block"), None)
    if refused_by is not None:
        return Verdict(
            check_id=check.check_id, allow=False, rule=refused_by.rule, policy=refused_by.policy, findings=findings
        )
    if problem is not None:
        fails_open = not unknown and all(p.spec.fail == "open" for p in applied if p.spec.mode == "enforce")
        return Verdict(check_id=check.check_id, allow=fails_open, findings=findings, problem=problem)
    return Verdict(check_id=check.check_id, allow=True, edits=_edits(redactions), findings=findings)


def _look(
    segment: Segment,
    applied: list[Policy],
    tallies: dict[tuple[str, str, Action], _Tally],
    redactions: dict[str, tuple[Text, list[Match]]],
    keep_going: Callable[[], bool],
) -> None:
    asks: dict[str, tuple[Detector, list[_Ask]]] = {}
    for policy in applied:
        for rule in policy.rules:
            asks.setdefault(rule.detector, (rule.find, []))[1].append(_Ask(policy, rule))
    text = Text(segment.text)
    every = decodings(text, keep_going)
    for find, askers in asks.values():
        if not keep_going():
            raise OutOfTime
        matches = search(every, find, keep_going)
        if not matches:
            continue
        points = text.points(offset for match in matches for offset in (match.start, match.end))
        for policy, rule in askers:
            for match in matches:
                tally = tallies.setdefault((policy.spec.name, rule.name or match.rule, rule.action), _Tally())
                tally.count += 1
                tally.characters += points[match.end] - points[match.start]
        if any(rule.action == "redact" and policy.spec.mode == "enforce" for policy, rule in askers):
            redactions.setdefault(segment.path, (text, []))[1].extend(matches)


def _findings(applied: list[Policy], tallies: Mapping[tuple[str, str, Action], _Tally]) -> tuple[Finding, ...]:
    """By policy in the check's order, and within one in the order its rules found something."""
    enforced = {policy.spec.name: policy.spec.mode == "enforce" for policy in applied}
    order = {name: place for place, name in enumerate(enforced)}
    return tuple(
        Finding(
            policy=name,
            rule=rule,
            action=action,
            enforced=enforced[name],
            count=tally.count,
            characters=tally.characters,
        )
        for (name, rule, action), tally in sorted(tallies.items(), key=lambda item: order[item[0][0]])
    )


def _edits(redactions: Mapping[str, tuple[Text, list[Match]]]) -> tuple[Span, ...]:
    """Where to put which placeholder. The same value has the same one in every segment of the check."""
    placeholders: dict[tuple[str, bytes], str] = {}
    counts: dict[str, int] = {}
    edits: list[Span] = []
    for path, (text, matches) in redactions.items():
        wanted: list[Edit] = []
        for start, end, named in merge(matches):
            key = (named.label, named.value)
            if key not in placeholders:
                counts[named.label] = counts.get(named.label, 0) + 1
                placeholders[key] = f"[{named.label}_{counts[named.label]}]"
            wanted.append(Edit(start, end, placeholders[key]))
        made = keep_json(text.data, wanted)
        points = text.points(offset for edit in made for offset in (edit.start, edit.end))
        edits += [
            Span(path=path, start=points[edit.start], end=points[edit.end], replacement=edit.replacement)
            for edit in made
        ]
    return tuple(edits)


def merge(matches: Iterable[Match]) -> Iterator[tuple[int, int, Match]]:
    """Spans that do not overlap, in order, each with the match that names it.

    Matches that overlap become one span over all of them, named by the longest (the first of equals): an address
    inside a connection string goes with the string. Matches that only touch stay apart.
    """
    low = high = 0
    longest: Match | None = None
    for match in sorted(matches, key=lambda m: (m.start, -m.end)):
        if longest is not None and match.start < high:
            high = max(high, match.end)
            if match.end - match.start > longest.end - longest.start:
                longest = match
            continue
        if longest is not None:
            yield low, high, longest
        low, high, longest = match.start, match.end, match
    if longest is not None:
        yield low, high, longest
