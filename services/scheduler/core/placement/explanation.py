"""Why a replica goes where it goes, or nowhere: what every machine said, counted and shown."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from libs.events.explanation import MAX_CANDIDATES, Candidate, Explanation
from libs.events.model import Profile

from . import summary
from .candidates import Fit
from .checks import CHECKS, LASTING

SHOWN_WHEN_PLACED = 16
"""Candidates kept of a choice that was made; of one that could not be made all ``MAX_CANDIDATES`` are."""


class Assessment(msgspec.Struct, frozen=True):
    """One profile, and what every machine said to it."""

    profile: Profile
    fits: Mapping[str, Fit]
    rejected: Mapping[str, Mapping[str, str]]
    counts: Mapping[str, int] | None = None
    """Check to machines it turned away, where that is known without counting."""


def counted(assessments: Sequence[Assessment]) -> dict[str, int]:
    """Check to machines it turned away, with any profile."""
    if len(assessments) == 1 and (counts := assessments[0].counts) is not None:
        return {check: counts[check] for check in CHECKS if counts.get(check)}
    nodes: dict[str, set[str]] = {}
    for assessment in assessments:
        for machine_id, reasons in assessment.rejected.items():
            for check in reasons:
                nodes.setdefault(check, set()).add(machine_id)
    return {check: len(nodes[check]) for check in (*CHECKS, *sorted(nodes.keys() - CHECKS.keys())) if check in nodes}


def shown(
    fitting: Sequence[tuple[str, dict[str, float]]], assessment: Assessment, assessments: Sequence[Assessment]
) -> tuple[Candidate, ...]:
    """The candidates of a choice: those that fit with their scores, the best first, then the nearest rejected ones."""
    fit = [Candidate(machine_id=m, profile=assessment.profile.name, scores=scores) for m, scores in fitting]
    return (*fit, *_rejected(assessments, SHOWN_WHEN_PLACED - len(fit)))


def _rejected(assessments: Sequence[Assessment], most: int) -> list[Candidate]:
    candidates: list[Candidate] = []
    for assessment in assessments:
        left = most - len(candidates)
        nearest = heapq.nsmallest(left, assessment.rejected, key=partial(_nearness, assessment)) if left > 0 else ()
        for machine_id in nearest:
            reasons = tuple(assessment.rejected[machine_id].values())
            candidates.append(Candidate(machine_id=machine_id, profile=assessment.profile.name, rejected=reasons))
    return candidates


def _nearness(assessment: Assessment, machine_id: str) -> tuple[int, int, str]:
    """The smaller, the less is missing: what is occupied comes free, what a machine is stays."""
    rejected = assessment.rejected[machine_id]
    return sum(check in LASTING for check in rejected), len(rejected), machine_id


def nowhere(assessments: Sequence[Assessment], considered: int) -> Explanation:
    """Why none of ``considered`` machines can take a replica, with any profile."""
    if considered == 0:
        return Explanation(considered=0, summary="no machine has registered yet")
    if not assessments:
        return Explanation(considered=considered, summary="the definition has no profile for it")
    counts = counted(assessments)
    # Of each check the machine that lacks least besides, and such machines' checks first.
    examples: dict[str, tuple[str, str]] = {}
    rejected = ((_nearness(each, machine_id), each) for each in assessments for machine_id in each.rejected)
    for (_, _, machine_id), assessment in sorted(rejected, key=lambda pair: pair[0]):
        for check, sentence in assessment.rejected[machine_id].items():
            examples.setdefault(check, (machine_id, sentence))
    return Explanation(
        considered=considered,
        rejected=counts,
        candidates=tuple(_rejected(assessments, MAX_CANDIDATES)),
        summary=summary.nowhere(considered, counts, examples),
    )
