"""Where a replica goes: feasible, then ranked, then the best; and why, for every node looked at."""

from __future__ import annotations

import heapq
from collections import Counter

import msgspec

from libs.events.explanation import MOST_CANDIDATES, Candidate, Explanation
from libs.events.model import Profile

from .checks import Query, rejections, usable_gpus
from .hearing import Hearing
from .room import Room, usable_memory_mb
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
    machine_id: str
    profile: Profile
    devices: tuple[str, ...]
    scores: dict[str, float]
    total: float

    @property
    def rank(self) -> tuple[float, str]:
        """The best is the least."""
        return -self.total, self.machine_id


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


class Search:
    """For a place for replicas of one model, one after another.

    What was found out about a machine holds until one is placed there.
    """

    def __init__(self, state: State, model: Model, room: Room, hearing: Hearing | None) -> None:
        self._state = state
        self._model = model
        self._room = room
        self._hearing = hearing
        self._weights = state.weights_of(model.spec)
        self._version = state.facts.versions.get(self._weights) if self._weights else None
        self._profiles = sorted(model.spec.profiles, key=lambda p: -p.priority)
        self._known: dict[str, dict[str, _Option | dict[str, str]]] = {p.name: {} for p in self._profiles}
        self._here: Counter[str] = Counter()
        for replica in state.of_model.get(model.name, {}).values():
            if replica.phase in ("placed", "ready"):
                self._here.update(replica.machines)

    def placed(self, machine_id: str) -> None:
        """One was placed there: look at that machine anew."""
        for known in self._known.values():
            known.pop(machine_id, None)

    def best(self) -> Placing:
        """Choose a machine for one more replica.

        Profiles are tried from the highest priority down; the first that fits anywhere is taken. Among equally
        good machines the first by id is taken, so that the same log gives the same choice.
        """
        turned = _Turned([], {}, {})
        machines = self._state.facts.machines
        for profile in self._profiles:
            known = self._known[profile.name]
            options: list[_Option] = []
            for machine_id, machine in machines.items():
                found = known.get(machine_id)
                if found is None:
                    found = known[machine_id] = self._look(machine_id, machine, profile)
                if isinstance(found, _Option):
                    options.append(found)
                else:
                    turned.add(machine_id, profile, found)
            if options:
                return _chosen(options, turned, len(machines), self._weights or "")
        return Placing(explanation=_nowhere(turned, len(machines)))

    def _look(self, machine_id: str, machine: Machine, profile: Profile) -> _Option | dict[str, str]:
        heard = self._hearing.get(machine_id) if self._hearing is not None else None
        free = self._room.free(machine)
        query = Query(
            machine=machine,
            profile=profile,
            source=(self._model.spec.source or "").removeprefix("library:"),
            weights=self._weights,
            version=self._version,
            mirrors=len(self._state.facts.mirrors),
            free=free,
            gpus=usable_gpus(profile, free, heard),
            heard=heard,
        )
        return rejections(query) or self._option(machine_id, query)

    def _option(self, machine_id: str, query: Query) -> _Option:
        machine, profile, gpus = query.machine, query.profile, query.gpus
        if profile.gpu_class is None:
            usable = usable_memory_mb(machine.facts.memory_total_mb)
            # The emptiest machine: engines on a CPU share its memory bandwidth.
            fit = max(0.0, (query.free.memory_mb - (profile.memory_mb or 0)) / usable) if usable else 0.0
        else:
            # The fullest machine: whole machines stay free for models that need them.
            fit = 1.0 - (len(gpus) - profile.gpus_per_node) / max(1, len(machine.facts.gpus))
        here = self._here[machine_id] + self._room.given_to(self._model.name)[machine_id]
        scores = {
            "weights": 1.0 if self._weights and self._weights in machine.weights else 0.0,
            "history": 1.0 / (1 + self._model.failed_on.get(machine_id, 0)),
            "spread": 1.0 / (1 + here),
            "fit": round(fit, 4),
        }
        return _Option(
            machine_id=machine_id,
            profile=profile,
            devices=tuple(gpu.uuid for gpu in gpus[: profile.gpus_per_node]),
            scores=scores,
            total=round(sum(WORTH[part] * score for part, score in scores.items()), 6),
        )


def place(state: State, model: Model, room: Room, hearing: Hearing | None) -> Placing:
    """Where one more replica of ``model`` would go."""
    return Search(state, model, room, hearing).best()


def _chosen(options: list[_Option], turned: _Turned, considered: int, weights: str) -> Placing:
    ranked = heapq.nsmallest(SHOWN_WHEN_PLACED, options, key=lambda option: option.rank)
    best = ranked[0]
    shown = [Candidate(machine_id=o.machine_id, profile=o.profile.name, scores=o.scores) for o in ranked]
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
