"""Where a replica goes: feasible, then ranked, then the best; and why, for every node looked at."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from libs.events.explanation import MAX_CANDIDATES, Candidate, Explanation
from libs.events.model import ModelSpec, Profile
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.state.state import Machine, Model, State

from . import summary
from .anti_affinity import conflicts
from .candidates import (
    WORTH,
    Fit,
    Requirement,
    Table,
    Tables,
    assess,
    requirement_of,
)
from .capacity import Capacity, rack_of
from .checks import CHECKS, LASTING
from .gangs import Gang, best_gang
from .power import watts_of

SHOWN_WHEN_PLACED = 16
"""Candidates kept of a choice that was made; of one that could not be made all ``MAX_CANDIDATES`` are."""


class Spot(msgspec.Struct, frozen=True):
    """What one shard gets."""

    machine_id: str
    devices: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()


class Placement(msgspec.Struct, frozen=True):
    """The choice: a spot for each shard, the leading one first. There is none if nothing fits."""

    explanation: Explanation
    spots: tuple[Spot, ...] = ()
    profile: Profile | None = None
    weights: str = ""
    domain: str | None = None
    fabric: str | None = None

    @property
    def machine_id(self) -> str | None:
        return self.spots[0].machine_id if self.spots else None

    @property
    def devices(self) -> tuple[str, ...]:
        return self.spots[0].devices if self.spots else ()


class Ranked(msgspec.Struct, frozen=True):
    machine_id: str
    fit: Fit
    scores: dict[str, float]
    total: float


class _Asked(msgspec.Struct, frozen=True):
    """One profile, and what every machine said to it."""

    profile: Profile
    fits: Mapping[str, Fit]
    rejected: Mapping[str, Mapping[str, str]]
    counts: Mapping[str, int] | None = None
    """Check to machines it turned away, where that is known without counting."""


class Search:
    """For places for replicas of one definition, one after another."""

    def __init__(
        self,
        state: State,
        model: Model,
        capacity: Capacity,
        heartbeats: Heartbeats | None,
        tables: Tables | None = None,
        spec: ModelSpec | None = None,
        profiles: Collection[str] | None = None,
    ) -> None:
        """``spec``: the definition, if not the one in force; ``profiles``: only those."""
        self._state = state
        self._model = model
        self._capacity = capacity
        self._hearing = heartbeats
        self._tables = tables if tables is not None else Tables()
        self._spec = spec if spec is not None else model.spec
        self._profiles = sorted(
            (p for p in self._spec.profiles if profiles is None or p.name in profiles), key=lambda p: -p.priority
        )

    def best(self) -> Placement:
        """Choose machines for one more replica.

        Profiles are tried from the highest priority down; the first that fits anywhere is taken. Among equally
        good machines the first by id is taken, so that the same log gives the same choice.
        """
        asked: list[_Asked] = []
        generations: list[object] = []
        for profile in self._profiles:
            wanted = requirement_of(self._state, self._spec, profile)
            table = self._tables.of(wanted)
            table.refresh(self._state, self._capacity, self._hearing)
            found = self._choose(profile, wanted, asked, table)
            if found is not None:
                return found
            whole = asked[-1].counts is not None  # nothing but the table turned machines away
            generations.append((wanted.shape, table.generation if whole else -self._state.position))
        return Placement(explanation=self._nowhere(asked, tuple(generations)))

    def _nowhere(self, asked: Sequence[_Asked], generations: tuple[object, ...]) -> Explanation:
        """Told once for as long as every table stays as it is."""
        key = (self._model.name, *(p.name for p in self._profiles))
        known = self._tables.nowhere.get(key)
        if known is not None and known[0] == generations:
            return known[1]
        explanation = _nowhere(asked, len(self._state.facts.machines))
        self._tables.nowhere[key] = generations, explanation
        return explanation

    def placements_without(self, gone: Collection[str], machines: Iterable[str]) -> list[Placement]:
        """Choices there would be on these machines if shards were gone: for each profile that fits, at most 16."""
        capacity = self._capacity.without(gone)
        found: list[Placement] = []
        for profile in self._profiles:
            wanted = requirement_of(self._state, self._spec, profile)
            fits: dict[str, Fit] = {}
            if profile.nodes > 1:
                table = self._tables.of(wanted)
                table.refresh(self._state, self._capacity, self._hearing)
                fits.update(table.fits)
            for machine_id in machines:
                machine = self._state.facts.machines.get(machine_id)
                entry = assess(self._state, machine, wanted, capacity, self._hearing) if machine is not None else None
                if entry is not None and isinstance(entry[0], Fit):
                    fits[machine_id] = entry[0]
            asked = _Asked(profile, self._allowed(fits, {}, capacity), {})
            if profile.nodes > 1:
                gang = self._gang(asked)
                if isinstance(gang, Gang):
                    found.append(self._together(gang, asked, [asked], wanted))
            else:
                for one in self._ranked(asked.fits, SHOWN_WHEN_PLACED):
                    found.append(self._alone(one, [one], asked, [asked], wanted))
        return found

    def _choose(self, profile: Profile, wanted: Requirement, asked: list[_Asked], table: Table) -> Placement | None:
        while True:
            rejected: dict[str, Mapping[str, str]] = {}
            fits = self._allowed(table.fits, rejected, self._capacity)
            rejected.update(self._power_too(profile, table.rejected))
            one = _Asked(profile, fits, table.rejected, table.counts)
            if rejected:
                one = _Asked(profile, fits, {**table.rejected, **rejected})
            if profile.nodes > 1:
                gang = self._gang(one)
                if not isinstance(gang, Gang):
                    asked.append(_Asked(profile, {}, {**one.rejected, **gang}))
                    return None
                return self._together(gang, one, [*asked, one], wanted)
            ranked = self._ranked(one.fits, SHOWN_WHEN_PLACED)
            if not ranked:
                asked.append(one)
                return None
            if self._hearing is None or table.again(self._state, ranked[0].machine_id, self._capacity, self._hearing):
                fresh = table.fits[ranked[0].machine_id]
                best = msgspec.structs.replace(ranked[0], fit=fresh)
                return self._alone(best, ranked, one, [*asked, one], wanted)

    def _allowed(
        self, fits: Mapping[str, Fit], rejected: dict[str, Mapping[str, str]], capacity: Capacity
    ) -> Mapping[str, Fit]:
        """Without those that this model, or another GPU's draw, is kept from; they are added to ``rejected``."""
        away = conflicts(self._state, self._spec, capacity)
        if away:
            rejected.update({m: {"anti_affinity": away[m]} for m in fits if m in away})
            fits = {m: fit for m, fit in fits.items() if m not in away}
        return self._within_power(fits, rejected, capacity)

    def _within_power(
        self, fits: Mapping[str, Fit], rejected: dict[str, Mapping[str, str]], capacity: Capacity
    ) -> Mapping[str, Fit]:
        """Without those whose rack may not draw what the GPUs would; they are added to ``rejected``."""
        caps = self._state.facts.rack_watts
        if not caps:
            return fits
        within: dict[str, Fit] = {}
        for machine_id, fit in fits.items():
            rack, needs = rack_of(self._state.facts.machines[machine_id]), self._watts(machine_id, fit)
            if rack not in caps or not needs or (drawn := capacity.rack_watts(rack)) + needs <= caps[rack]:
                within[machine_id] = fit
            else:
                rejected[machine_id] = {"power": summary.power(needs, drawn, caps[rack], rack)}
        return within

    def _power_too(self, profile: Profile, rejected: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
        """Of machines without GPUs enough to give those whose rack has no power left for them either."""
        found: dict[str, Mapping[str, str]] = {}
        caps = self._state.facts.rack_watts
        for machine_id, reasons in rejected.items() if caps and profile.gpu_class is not None else ():
            machine = self._state.facts.machines[machine_id]
            if "gpus" not in reasons or (rack := rack_of(machine)) not in caps:
                continue
            watts = sorted(watts_of(gpu) for gpu in machine.facts.gpus if gpu.gpu_class == profile.gpu_class)
            needs, drawn = sum(watts[: profile.gpus_per_node]), self._capacity.rack_watts(rack)
            if drawn + needs > caps[rack]:
                found[machine_id] = {**reasons, "power": summary.power(needs, drawn, caps[rack], rack)}
        return found

    # one machine

    def _ranked(self, fits: Mapping[str, Fit], most: int) -> list[Ranked]:
        here, racks = self._company()
        failed = self._model.failed_on
        machines = self._state.facts.machines
        totals: list[tuple[float, str]] = []
        for machine_id, fit in fits.items():
            if fit.rack not in racks and machine_id not in failed:
                totals.append((fit.rank, machine_id))
            else:
                total = fit.total + sum(
                    WORTH[part] * score
                    for part, score in self._own_scores(machine_id, machines[machine_id], here, racks).items()
                )
                totals.append((-round(total, 6), machine_id))
        return [
            Ranked(
                machine_id,
                fits[machine_id],
                {**self._own_scores(machine_id, machines[machine_id], here, racks), **fits[machine_id].scores},
                -total,
            )
            for total, machine_id in heapq.nsmallest(most, totals)
        ]

    def _company(self) -> tuple[Counter[str], Counter[str]]:
        """Machine and rack to shards of this model that are there."""
        here: Counter[str] = Counter()
        for replica in self._state.of_model.get(self._model.name, {}).values():
            if replica.phase in ("placed", "ready"):
                here.update(replica.machines)
        here.update(self._capacity.reserved_for(self._model.name))
        racks: Counter[str] = Counter()
        for machine_id, shards in here.items():
            machine = self._state.facts.machines.get(machine_id)
            if machine is not None:
                racks[rack_of(machine)] += shards
        return here, racks

    def _own_scores(
        self, machine_id: str, machine: Machine, here: Mapping[str, int], racks: Mapping[str, int]
    ) -> dict[str, float]:
        """Those that depend on whose replica it is."""
        return {
            "history": 1.0 / (1 + self._model.failed_on.get(machine_id, 0)),
            "spread": 1.0 / (1 + here.get(machine_id, 0)),
            "racks": 1.0 / (1 + racks.get(rack_of(machine), 0)),
        }

    def _alone(
        self, best: Ranked, ranked: Sequence[Ranked], one: _Asked, asked: Sequence[_Asked], wanted: Requirement
    ) -> Placement:
        considered = len(self._state.facts.machines)
        second = next((r for r in ranked if r.machine_id != best.machine_id), None)
        lead = summary.ahead(best.scores, second.scores, WORTH) if second is not None else None
        next_best = second.machine_id if second is not None else None
        where = summary.where(self._state.facts.machines[best.machine_id].facts, best.fit.devices)
        return Placement(
            explanation=Explanation(
                considered=considered,
                rejected=_counted(asked),
                candidates=_shown([(r.machine_id, r.scores) for r in ranked], one, asked),
                chosen=(best.machine_id,),
                summary=summary.chosen(where, one.profile.name, considered, len(one.fits), next_best, lead),
            ),
            spots=(Spot(best.machine_id, best.fit.devices),),
            profile=one.profile,
            weights=wanted.weights or "",
        )

    # several machines

    def _gang(self, one: _Asked) -> Gang | dict[str, dict[str, str]]:
        fits, without = dict(one.fits), dict[str, dict[str, str]]()
        totals = {r.machine_id: r.total for r in self._ranked(fits, len(fits))}
        leaves = {m: self._state.facts.machines[m].facts.labels.get("leaf", "") for m in fits}
        while True:
            found = best_gang(self._state.fabrics(), totals, leaves, one.profile.nodes)
            if not isinstance(found, Gang):
                return {**found, **without}
            over = self._over_power(fits, sorted(found.machines, key=lambda m: totals[m]))
            if over is None:
                return found
            del totals[over[0]]
            without[over[0]] = {"power": over[1]}

    def _over_power(self, fits: Mapping[str, Fit], machines: Sequence[str]) -> tuple[str, str] | None:
        """The first of these machines in a rack that may not draw what all of them there would, and why; or None."""
        caps = self._state.facts.rack_watts
        needs: Counter[str] = Counter()
        where = {m: rack_of(self._state.facts.machines[m]) for m in machines} if caps else {}
        for machine_id, rack in where.items():
            needs[rack] += self._watts(machine_id, fits[machine_id])
        for machine_id, rack in where.items():
            if rack in caps and (drawn := self._capacity.rack_watts(rack)) + needs[rack] > caps[rack]:
                return machine_id, summary.power(needs[rack], drawn, caps[rack], rack)
        return None

    def _watts(self, machine_id: str, fit: Fit) -> int:
        gpus = self._state.facts.machines[machine_id].facts.gpus
        return sum(watts_of(gpu) for gpu in gpus if gpu.uuid in fit.devices)

    def _together(self, gang: Gang, one: _Asked, asked: Sequence[_Asked], wanted: Requirement) -> Placement:
        considered = len(self._state.facts.machines)
        scores = {r.machine_id: r.scores for r in self._ranked(one.fits, len(one.fits))}
        first = [(m, {**scores[m], **gang.scores[m]}) for m in gang.machines]
        rest = [(m, s) for m, s in scores.items() if m not in gang.machines]
        return Placement(
            explanation=Explanation(
                considered=considered,
                rejected=_counted(asked),
                candidates=_shown([*first, *rest][:SHOWN_WHEN_PLACED], one, asked),
                chosen=gang.machines,
                summary=summary.chosen_together(
                    gang.machines, one.profile.name, gang.where + gang.before, considered, len(one.fits)
                ),
            ),
            spots=tuple(Spot(m, one.fits[m].devices, gang.adapters.get(m, ())) for m in gang.machines),
            profile=one.profile,
            weights=wanted.weights or "",
            domain=gang.domain,
            fabric=gang.fabric,
        )


def place(state: State, model: Model, capacity: Capacity, heartbeats: Heartbeats | None) -> Placement:
    """Where one more replica of ``model`` would go."""
    return Search(state, model, capacity, heartbeats).best()


def _counted(asked: Sequence[_Asked]) -> dict[str, int]:
    """Check to machines it turned away, with any profile."""
    if len(asked) == 1 and (counts := asked[0].counts) is not None:
        return {check: counts[check] for check in CHECKS if counts.get(check)}
    nodes: dict[str, set[str]] = {}
    for one in asked:
        for machine_id, reasons in one.rejected.items():
            for check in reasons:
                nodes.setdefault(check, set()).add(machine_id)
    return {check: len(nodes[check]) for check in (*CHECKS, *sorted(nodes.keys() - CHECKS.keys())) if check in nodes}


def _shown(
    fitting: Sequence[tuple[str, dict[str, float]]], one: _Asked, asked: Sequence[_Asked]
) -> tuple[Candidate, ...]:
    shown = [Candidate(machine_id=m, profile=one.profile.name, scores=scores) for m, scores in fitting]
    return (*shown, *_rejected(asked, SHOWN_WHEN_PLACED - len(shown)))


def _rejected(asked: Sequence[_Asked], most: int) -> list[Candidate]:
    found: list[Candidate] = []
    for one in asked:
        nearest = heapq.nsmallest(most - len(found), one.rejected, key=lambda machine_id: _nearness(one, machine_id))
        for machine_id in nearest if most > len(found) else ():
            reasons = tuple(one.rejected[machine_id].values())
            found.append(Candidate(machine_id=machine_id, profile=one.profile.name, rejected=reasons))
    return found


def _nearness(one: _Asked, machine_id: str) -> tuple[int, int, str]:
    """The smaller, the less is missing: what is occupied comes free, what a machine is stays."""
    rejected = one.rejected[machine_id]
    return sum(check in LASTING for check in rejected), len(rejected), machine_id


def _nowhere(asked: Sequence[_Asked], considered: int) -> Explanation:
    if considered == 0:
        return Explanation(considered=0, summary="no machine has registered yet")
    if not asked:
        return Explanation(considered=considered, summary="the definition has no profile for it")
    counted = _counted(asked)
    # Of each check the machine that lacks least besides, and such machines' checks first.
    examples: dict[str, tuple[str, str]] = {}
    rejected = ((_nearness(one, machine_id), one) for one in asked for machine_id in one.rejected)
    nearest = sorted(rejected, key=lambda pair: pair[0])
    for (_, _, machine_id), one in nearest:
        for check, sentence in one.rejected[machine_id].items():
            examples.setdefault(check, (machine_id, sentence))
    return Explanation(
        considered=considered,
        rejected=counted,
        candidates=tuple(_rejected(asked, MAX_CANDIDATES)),
        summary=summary.nowhere(considered, counted, examples),
    )
