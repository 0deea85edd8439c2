"""Where a replica goes: feasible, then ranked, then the best; and why, for every node looked at."""

from __future__ import annotations

from collections import Counter

import msgspec

from libs.events.explanation import MOST_CANDIDATES, Candidate, Explanation
from libs.events.model import Profile

from .checks import Query, free_gpus, rejections
from .hearing import Heard, Hearing
from .room import Free, Room, usable_memory_mb
from .state import Machine, Model, State

SHOWN_WHEN_PLACED = 16
"""Candidates kept of a choice that was made; of one that could not be made all ``MOST_CANDIDATES`` are."""

WORTH = {"weights": 3.0, "history": 2.0, "spread": 3.0, "fit": 1.0}
"""What a score part counts for: weights already there save minutes, and replicas on one node fail together, which
weighs more than that one failed there lately until it has failed four times."""


class Placing(msgspec.Struct, frozen=True):
    """The choice. ``machine_id`` is None if nothing fits."""

    explanation: Explanation
    machine_id: str | None = None
    profile: Profile | None = None
    devices: tuple[str, ...] = ()
    weights: str = ""


class _Option(msgspec.Struct, frozen=True):
    machine: Machine
    profile: Profile
    devices: tuple[str, ...]
    scores: dict[str, float]
    total: float

    @property
    def machine_id(self) -> str:
        return self.machine.facts.machine_id


class _Turned(msgspec.Struct):
    """Who was turned away and why."""

    candidates: list[Candidate]
    nodes: dict[str, set[str]]
    """Check to machine ids."""
    examples: dict[str, str]
    """Check to the first sentence it gave."""

    def add(self, machine_id: str, profile: Profile, reasons: dict[str, str]) -> None:
        for check, sentence in reasons.items():
            self.nodes.setdefault(check, set()).add(machine_id)
            self.examples.setdefault(check, f"{machine_id}: {sentence}")
        if len(self.candidates) < MOST_CANDIDATES:
            self.candidates.append(
                Candidate(machine_id=machine_id, profile=profile.name, rejected=tuple(reasons.values()))
            )

    def counted(self) -> dict[str, int]:
        return {check: len(nodes) for check, nodes in self.nodes.items()}


def place(state: State, model: Model, room: Room, hearing: Hearing | None) -> Placing:
    """Choose a machine for one more replica of ``model``.

    Profiles are tried from the highest priority down; the first that fits anywhere is taken. Among equally
    good machines the first by id is taken, so that the same log gives the same choice.
    """
    weights = state.weights_of(model.spec)
    here = Counter(room.given_to(model.name))
    for replica in state.of_model.get(model.name, {}).values():
        if replica.phase in ("placed", "ready"):
            here.update(replica.machines)
    turned = _Turned([], {}, {})
    for profile in sorted(model.spec.profiles, key=lambda p: -p.priority):
        options = []
        for machine_id, machine in state.facts.machines.items():
            free = room.free(machine)
            heard = hearing.get(machine_id) if hearing is not None else None
            query = Query(
                machine=machine,
                profile=profile,
                source=(model.spec.source or "").removeprefix("library:"),
                weights=weights,
                version=state.facts.versions.get(weights) if weights else None,
                mirrors=len(state.facts.mirrors),
                free=free,
                heard=heard,
            )
            reasons = rejections(query)
            if reasons:
                turned.add(machine_id, profile, reasons)
            else:
                options.append(_option(machine, model, profile, weights or "", here[machine_id], free, heard))
        if options:
            options.sort(key=lambda o: (-o.total, o.machine_id))
            return _chosen(options, turned, len(state.facts.machines), weights or "")
    return Placing(explanation=_nowhere(turned, len(state.facts.machines)))


def _option(
    machine: Machine, model: Model, profile: Profile, weights: str, here: int, free: Free, heard: Heard | None
) -> _Option:
    devices: tuple[str, ...] = ()
    if profile.gpu_class is None:
        usable = usable_memory_mb(machine.facts.memory_total_mb)
        # The emptiest machine: engines on a CPU share its memory bandwidth.
        fit = max(0.0, (free.memory_mb - (profile.memory_mb or 0)) / usable) if usable else 0.0
    else:
        candidates = free_gpus(machine, profile, free, heard)
        devices = tuple(g.uuid for g in candidates[: profile.gpus_per_node])
        # The fullest machine: whole machines stay free for models that need them.
        fit = 1.0 - (len(candidates) - profile.gpus_per_node) / max(1, len(machine.facts.gpus))
    scores = {
        "weights": 1.0 if weights and weights in machine.weights else 0.0,
        "history": 1.0 / (1 + model.failed_on.get(machine.facts.machine_id, 0)),
        "spread": 1.0 / (1 + here),
        "fit": round(fit, 4),
    }
    total = sum(WORTH[part] * score for part, score in scores.items())
    return _Option(machine=machine, profile=profile, devices=devices, scores=scores, total=round(total, 6))


def _chosen(options: list[_Option], turned: _Turned, considered: int, weights: str) -> Placing:
    best = options[0]
    shown = [
        Candidate(machine_id=o.machine_id, profile=o.profile.name, scores=o.scores) for o in options[:SHOWN_WHEN_PLACED]
    ]
    shown += turned.candidates[: SHOWN_WHEN_PLACED - len(shown)]
    others = f"the best of {len(options)} that could take it" if len(options) > 1 else "the only one that could take it"
    return Placing(
        explanation=Explanation(
            considered=considered,
            rejected=turned.counted(),
            candidates=tuple(shown),
            chosen=(best.machine_id,),
            summary=f"{best.machine_id} with the profile {best.profile.name}: {others}, of {considered} looked at",
        ),
        machine_id=best.machine_id,
        profile=best.profile,
        devices=best.devices,
        weights=weights,
    )


def _nowhere(turned: _Turned, considered: int) -> Explanation:
    if considered == 0:
        summary = "no machine has registered yet"
    else:
        counted = turned.counted()
        worst = sorted(counted, key=lambda check: -counted[check])
        why = "; ".join(f"{check} turned away {counted[check]} ({turned.examples[check]})" for check in worst)
        summary = f"none of {considered} machines can take it: {why}"
    return Explanation(
        considered=considered, rejected=turned.counted(), candidates=tuple(turned.candidates), summary=summary
    )
