"""Why a replica goes where it goes, or nowhere: what every machine said, counted and shown, and one sentence of it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from libs.events.explanation import MAX_CANDIDATES, Candidate, Explanation
from libs.events.machine import Gpu, MachineRegistered
from libs.events.model import Profile
from libs.fit.health import (
    limited,
    slow,
    usable,
    worst,
)

from .candidates import Fit
from .checks import CHECKS, LASTING
from .devices import short_link
from .gangs import LEAST, NAMED

SHOWN_WHEN_PLACED = 16
"""Candidates kept of a choice that was made; of one that could not be made all ``MAX_CANDIDATES`` are."""

LEADS = {
    "weights": "its weights have run there",
    "spread": "fewer of its replicas run there",
    "history": "it failed there less often",
    "racks": "fewer of its replicas run in that rack",
    "plain": "no GPUs stand idle beside it there",
    "sound": "the cards there are not slowed down",
    "link": "the cards' PCIe links are wider",
    "whole": "no larger group of cards is broken up",
    "near": "the cards are nearer to each other",
    "adapter": "the cards are nearer to the network adapters",
    "cable": "its cable runs at full rate",
}
"""What a higher score says."""
FIT_OF_GPUS = "it is the fuller one, so that whole machines stay whole"
FIT_OF_CPUS = "more of its memory is free"


def ahead(best: Mapping[str, float], second: Mapping[str, float], worth: Mapping[str, float]) -> str | None:
    """The one or two scores that put one machine before another; None: nothing but its name does."""
    leads = {part: worth[part] * (score - second.get(part, 0.0)) for part, score in best.items() if part in worth}
    if sum(leads.values()) < LEAST:
        return None
    first = sorted((part for part in leads if leads[part] >= LEAST), key=lambda part: (-leads[part], part))
    if "spread" in first and "racks" in first:
        first.remove("racks")  # it is said with the other
    fit = FIT_OF_CPUS if "plain" in best else FIT_OF_GPUS
    return " and ".join(fit if part == "fit" else LEADS[part] for part in first[:2])


def chosen(where: str, profile: str, considered: int, fitting: int, second: str | None, lead: str | None) -> str:
    """``second``: the next best machine; ``lead``: what puts the chosen one before it."""
    here = f"{where} with the profile {profile}"
    if second is None:
        of = f"one of {considered} machines that can take it"
        return f"{here}: the only {of if considered > 1 else 'machine there is'}"
    why = f", before {second}: {lead}" if lead is not None else f": as good as {second}, and first by name"
    return f"{here}{why}; {fitting} of {considered} machines can take it"


def where(facts: MachineRegistered, devices: Sequence[str]) -> str:
    """A machine and which of its cards, and which were left for last."""
    mine = [gpu for gpu in facts.gpus if gpu.uuid in devices]
    if not mine:
        return facts.machine_id
    of_class = [gpu for gpu in facts.gpus if gpu.gpu_class == mine[0].gpu_class]
    last = "" if any(map(_worse, mine)) else "; ".join(_why_last(gpu) for gpu in of_class if _worse(gpu))
    return f"{facts.machine_id} ({_cards(mine)}{'; ' if last else ''}{last})"


def _worse(gpu: Gpu) -> bool:
    return usable(gpu) and (slow(gpu) or short_link(gpu))


def _why_last(gpu: Gpu) -> str:
    link = gpu.pcie
    if limited(gpu):
        return f"{card(gpu)} comes last: limited to {gpu.power_limit_watts} of its {gpu.power_default_watts} W"
    if slow(gpu) or link is None:
        worst_problem = worst(gpu.problems)
        return f"{card(gpu)} comes last{f': {worst_problem[1]}' if worst_problem is not None else ''}"
    if link.lanes is not None and link.card_lanes is not None and link.lanes < link.card_lanes:
        return f"{card(gpu)} comes last: {link.lanes} of its {link.card_lanes} PCIe lanes"
    return f"{card(gpu)} comes last: PCIe generation {link.generation} of its {link.card_generation}"


def _cards(gpus: Sequence[Gpu]) -> str:
    indexes = sorted(gpu.index for gpu in gpus)
    if len(gpus) == 1:
        return card(gpus[0])
    if indexes == list(range(indexes[0], indexes[-1] + 1)):
        return f"GPUs {indexes[0]} to {indexes[-1]}"
    return f"GPUs {', '.join(map(str, indexes))}"


def card(gpu: Gpu) -> str:
    """A card for people: by its index, and its instance where it is divided."""
    if gpu.mig is not None:
        return f"instance {gpu.mig.device} of GPU {gpu.mig.card_index}"
    return f"GPU {gpu.index}"


def chosen_together(machines: Sequence[str], profile: str, where: str, considered: int, fitting: int) -> str:
    """``where``: over what they compute together, and which others would have done."""
    names = ", ".join(machines[:NAMED])
    if len(machines) > NAMED:
        names = f"{names} and {len(machines) - NAMED} more"
    return f"{names} with the profile {profile}, together {where}; {fitting} of {considered} machines can take a part"


def power(needs: int, drawn: int, cap: int, rack: str) -> str:
    """Why a rack's limit keeps a machine from it; all in W."""
    over = f" (what runs there may draw {drawn} W)" if drawn > cap else ""
    return f"needs {needs} W, {max(0, cap - drawn)} W left of the {cap} W of rack {rack}{over}"


def _nowhere(considered: int, counted: Mapping[str, int], examples: Mapping[str, tuple[str, str]]) -> str:
    """``counted``: check to machines it turned away; ``examples``: to one of them, and why, the most helpful first."""
    worst = [check for check in examples if check in counted]
    if considered == 1:
        machine_id = examples[worst[0]][0]
        return f"{machine_id}, the only machine, cannot take it: {'; '.join(examples[check][1] for check in worst)}"
    why = "; ".join(f"{check} turned away {counted[check]} ({': '.join(examples[check])})" for check in worst)
    return f"none of {considered} machines can take it: {why}"


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
        summary=_nowhere(considered, counts, examples),
    )
