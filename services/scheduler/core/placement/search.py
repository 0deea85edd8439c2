"""Where a replica goes: feasible, then ranked, then the best; and why, for every node looked at."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from libs.events.explanation import Explanation
from libs.events.model import ModelSpec, Profile
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.state.facts import Machine, Model
from services.scheduler.core.state.state import State

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
from .gangs import Gang, best_gang
from .power import watts_of
from .summary import SHOWN_WHEN_PLACED, Assessment, counted, nowhere, shown


class Spot(msgspec.Struct, frozen=True):
    """What one shard gets."""

    machine_id: str
    devices: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    """Network cards over which it reaches the others."""


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
        """The leading machine; None: nothing fits."""
        return self.spots[0].machine_id if self.spots else None

    @property
    def devices(self) -> tuple[str, ...]:
        """GPUs on the leading machine, by UUID."""
        return self.spots[0].devices if self.spots else ()


class Ranked(msgspec.Struct, frozen=True):
    """A machine that can take the shard, with its scores for this model."""

    machine_id: str
    fit: Fit
    scores: dict[str, float]
    total: float


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
        self._heartbeats = heartbeats
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
        assessments: list[Assessment] = []
        generations: list[object] = []
        for profile in self._profiles:
            requirement = requirement_of(self._state, self._spec, profile)
            table = self._tables.of(requirement)
            table.refresh(self._state, self._capacity, self._heartbeats)
            placement = self._choose(profile, requirement, assessments, table)
            if placement is not None:
                return placement
            whole = assessments[-1].counts is not None  # nothing but the table turned machines away
            generations.append((requirement.shape, table.generation if whole else -self._state.position))
        return Placement(explanation=self._nowhere(assessments, tuple(generations)))

    def _nowhere(self, assessments: Sequence[Assessment], generations: tuple[object, ...]) -> Explanation:
        """Told once for as long as every table stays as it is."""
        key = (self._model.name, *(p.name for p in self._profiles))
        known = self._tables.nowhere.get(key)
        if known is not None and known[0] == generations:
            return known[1]
        explanation = nowhere(assessments, len(self._state.facts.machines))
        self._tables.nowhere[key] = generations, explanation
        return explanation

    def placements_without(self, gone: Collection[str], machines: Iterable[str]) -> list[Placement]:
        """Choices there would be on these machines if shards were gone: for each profile that fits, at most 16."""
        capacity = self._capacity.without(gone)
        placements: list[Placement] = []
        for profile in self._profiles:
            requirement = requirement_of(self._state, self._spec, profile)
            fits: dict[str, Fit] = {}
            if profile.nodes > 1:
                table = self._tables.of(requirement)
                table.refresh(self._state, self._capacity, self._heartbeats)
                fits.update(table.fits)
            for machine_id in machines:
                machine = self._state.facts.machines.get(machine_id)
                entry = (
                    assess(self._state, machine, requirement, capacity, self._heartbeats)
                    if machine is not None
                    else None
                )
                if entry is not None and isinstance(entry[0], Fit):
                    fits[machine_id] = entry[0]
            assessment = Assessment(profile, self._allowed(fits, {}, capacity), {})
            if profile.nodes > 1:
                gang = self._gang(assessment)
                if isinstance(gang, Gang):
                    placements.append(self._on_several(gang, assessment, [assessment], requirement))
            else:
                for ranked in self._ranked(assessment.fits, SHOWN_WHEN_PLACED):
                    placements.append(self._on_one(ranked, [ranked], assessment, [assessment], requirement))
        return placements

    def _choose(
        self, profile: Profile, requirement: Requirement, assessments: list[Assessment], table: Table
    ) -> Placement | None:
        while True:
            rejected: dict[str, Mapping[str, str]] = {}
            fits = self._allowed(table.fits, rejected, self._capacity)
            rejected.update(self._without_power(profile, table.rejected))
            assessment = Assessment(profile, fits, table.rejected, table.counts)
            if rejected:
                assessment = Assessment(profile, fits, {**table.rejected, **rejected})
            if profile.nodes > 1:
                gang = self._gang(assessment)
                if not isinstance(gang, Gang):
                    assessments.append(Assessment(profile, {}, {**assessment.rejected, **gang}))
                    return None
                return self._on_several(gang, assessment, [*assessments, assessment], requirement)
            ranked = self._ranked(assessment.fits, SHOWN_WHEN_PLACED)
            if not ranked:
                assessments.append(assessment)
                return None
            if self._heartbeats is None or table.again(
                self._state, ranked[0].machine_id, self._capacity, self._heartbeats
            ):
                fresh = table.fits[ranked[0].machine_id]
                best = msgspec.structs.replace(ranked[0], fit=fresh)
                return self._on_one(best, ranked, assessment, [*assessments, assessment], requirement)

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

    def _without_power(
        self, profile: Profile, rejected: Mapping[str, Mapping[str, str]]
    ) -> dict[str, Mapping[str, str]]:
        """Of machines without GPUs enough to give those whose rack has no power left for them either."""
        without: dict[str, Mapping[str, str]] = {}
        caps = self._state.facts.rack_watts
        for machine_id, reasons in rejected.items() if caps and profile.gpu_class is not None else ():
            machine = self._state.facts.machines[machine_id]
            if "gpus" not in reasons or (rack := rack_of(machine)) not in caps:
                continue
            watts = sorted(watts_of(gpu) for gpu in machine.facts.gpus if gpu.gpu_class == profile.gpu_class)
            needs, drawn = sum(watts[: profile.gpus_per_node]), self._capacity.rack_watts(rack)
            if drawn + needs > caps[rack]:
                without[machine_id] = {**reasons, "power": summary.power(needs, drawn, caps[rack], rack)}
        return without

    # one machine

    def _ranked(self, fits: Mapping[str, Fit], most: int) -> list[Ranked]:
        here, racks = self._neighbours()
        failed = self._model.failed_on
        machines = self._state.facts.machines
        totals: list[tuple[float, str]] = []
        for machine_id, fit in fits.items():
            if fit.rack not in racks and machine_id not in failed:
                totals.append((fit.rank, machine_id))
            else:
                total = fit.total + sum(
                    WORTH[part] * score
                    for part, score in self._model_scores(machine_id, machines[machine_id], here, racks).items()
                )
                totals.append((-round(total, 6), machine_id))
        return [
            Ranked(
                machine_id,
                fits[machine_id],
                {**self._model_scores(machine_id, machines[machine_id], here, racks), **fits[machine_id].scores},
                -total,
            )
            for total, machine_id in heapq.nsmallest(most, totals)
        ]

    def _neighbours(self) -> tuple[Counter[str], Counter[str]]:
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

    def _model_scores(
        self, machine_id: str, machine: Machine, here: Mapping[str, int], racks: Mapping[str, int]
    ) -> dict[str, float]:
        """Those that depend on whose replica it is."""
        return {
            "history": 1.0 / (1 + self._model.failed_on.get(machine_id, 0)),
            "spread": 1.0 / (1 + here.get(machine_id, 0)),
            "racks": 1.0 / (1 + racks.get(rack_of(machine), 0)),
        }

    def _on_one(
        self,
        best: Ranked,
        ranked: Sequence[Ranked],
        assessment: Assessment,
        assessments: Sequence[Assessment],
        requirement: Requirement,
    ) -> Placement:
        considered = len(self._state.facts.machines)
        second = next((r for r in ranked if r.machine_id != best.machine_id), None)
        lead = summary.ahead(best.scores, second.scores, WORTH) if second is not None else None
        next_best = second.machine_id if second is not None else None
        where = summary.where(self._state.facts.machines[best.machine_id].facts, best.fit.devices)
        return Placement(
            explanation=Explanation(
                considered=considered,
                rejected=counted(assessments),
                candidates=shown([(r.machine_id, r.scores) for r in ranked], assessment, assessments),
                chosen=(best.machine_id,),
                summary=summary.chosen(
                    where, assessment.profile.name, considered, len(assessment.fits), next_best, lead
                ),
            ),
            spots=(Spot(best.machine_id, best.fit.devices),),
            profile=assessment.profile,
            weights=requirement.weights or "",
        )

    # several machines

    def _gang(self, assessment: Assessment) -> Gang | dict[str, dict[str, str]]:
        fits, without = dict(assessment.fits), dict[str, dict[str, str]]()
        totals = {r.machine_id: r.total for r in self._ranked(fits, len(fits))}
        leaves = {m: self._state.facts.machines[m].facts.labels.get("leaf", "") for m in fits}
        while True:
            gang = best_gang(self._state.fabrics(), totals, leaves, assessment.profile.nodes)
            if not isinstance(gang, Gang):
                return {**gang, **without}
            over = self._over_power(fits, sorted(gang.machines, key=lambda m: totals[m]))
            if over is None:
                return gang
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

    def _on_several(
        self, gang: Gang, assessment: Assessment, assessments: Sequence[Assessment], requirement: Requirement
    ) -> Placement:
        considered = len(self._state.facts.machines)
        scores = {r.machine_id: r.scores for r in self._ranked(assessment.fits, len(assessment.fits))}
        first = [(m, {**scores[m], **gang.scores[m]}) for m in gang.machines]
        rest = [(m, s) for m, s in scores.items() if m not in gang.machines]
        return Placement(
            explanation=Explanation(
                considered=considered,
                rejected=counted(assessments),
                candidates=shown([*first, *rest][:SHOWN_WHEN_PLACED], assessment, assessments),
                chosen=gang.machines,
                summary=summary.chosen_together(
                    gang.machines, assessment.profile.name, gang.where + gang.before, considered, len(assessment.fits)
                ),
            ),
            spots=tuple(Spot(m, assessment.fits[m].devices, gang.nics.get(m, ())) for m in gang.machines),
            profile=assessment.profile,
            weights=requirement.weights or "",
            domain=gang.domain,
            fabric=gang.fabric,
        )


def place(state: State, model: Model, capacity: Capacity, heartbeats: Heartbeats | None) -> Placement:
    """Where one more replica of ``model`` would go."""
    return Search(state, model, capacity, heartbeats).best()
