"""What is known of every machine for one kind of shard, kept from decision to decision.

Models whose profiles need the same share one table. Only machines on which something happened are looked at again,
so a decision costs what changed, not what there is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import count

import msgspec

from libs.events.explanation import Explanation
from libs.events.model import ModelSpec, Profile
from libs.fit import Need as Memory
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.state.facts import Machine
from services.scheduler.core.state.state import State

from .capacity import Capacity, rack_of, usable_memory_mb
from .checks import (
    CHANGING,
    Query,
    query,
    rejections,
)
from .devices import Chosen
from .memory_fit import headers_of, on_each_gpu

TABLES_KEPT = 256

WORTH = {
    "weights": 3.0,
    "history": 2.0,
    "spread": 3.0,
    "racks": 1.0,
    "fit": 1.0,
    "whole": 0.25,
    "plain": 1.0,
    "sound": 1.0,
    "link": 0.5,
    "near": 0.25,
    "adapter": 0.25,
}
"""What a score part counts for: weights already there save minutes, and replicas on one node fail together, which
weighs more than that one failed there lately until it has failed four times."""

UNKNOWN_THERE = WORTH["history"] + WORTH["spread"] + WORTH["racks"]
"""What those parts are worth of a machine the model has nothing to do with."""


class Fit(msgspec.Struct, frozen=True):
    """A machine that can take the shard, with what does not depend on whose replica it is."""

    devices: tuple[str, ...]
    scores: dict[str, float]
    total: float
    rack: str
    rank: float
    """Less is better; of a model that neither runs nor failed there, nor runs in its rack."""


Entry = Fit | dict[str, str]
"""Or the sentence of each check it does not pass."""


class Requirement(msgspec.Struct, frozen=True):
    """What makes two profiles of two models need the same."""

    shape: tuple[object, ...]
    profile: Profile
    source: str
    weights: str | None
    regions: tuple[str, ...]
    lacking: str
    """The first fine-tuning the library does not have, as a sentence part; empty: it has them all."""
    each_gpu: Memory | None
    """What each GPU must hold, where the weights' headers tell."""


def requirement_of(state: State, spec: ModelSpec, profile: Profile) -> Requirement:
    """What a replica of a definition needs of each machine, with one of its profiles."""
    weights = state.weights_of(spec)
    source = (spec.source or "").removeprefix("library:")
    regions = spec.licence.regions if spec.licence is not None else ()
    known = state.loras_of(spec)
    missing = [lora for lora in spec.loras if lora.name not in known]
    lacking = f"{missing[0].source.removeprefix('library:')} for the adapter {missing[0].name}" if missing else ""
    each_gpu = on_each_gpu(headers_of(state, spec), profile, spec.context_length)
    shape = (
        *(profile.engine, profile.gpu_class, profile.gpus_per_node, profile.nodes > 1, profile.memory_mb),
        *(profile.cores, tuple(sorted(profile.node_selector.items())), profile.min_compute_capability),
        *(profile.min_gpu_memory_mb, source, weights, regions, len(state.facts.mirrors) > 0),
        *(each_gpu.total if each_gpu is not None else 0, lacking),
    )
    return Requirement(shape, profile, source, weights, regions, lacking, each_gpu)


class Table:
    """Every machine, for one need."""

    def __init__(self, wanted: Requirement, generations: Iterator[int]) -> None:
        self._need = wanted
        self._generations = generations
        self._seen = -1
        self.fits: dict[str, Fit] = {}
        self.rejected: dict[str, dict[str, str]] = {}
        self.counts: dict[str, int] = {}
        """Check to how many machines it turned away."""
        self.generation = 0
        """Changes whenever something in it does."""
        self._changing: set[str] = set()
        """Machines turned away by what telemetry alone may change."""
        self._registered = -1

    def refresh(self, state: State, capacity: Capacity, heartbeats: Heartbeats | None) -> None:
        """Look again at the machines on which something happened since the last time."""
        machines = state.facts.machines
        stale = state.changed.since(self._seen) if self._seen >= 0 else None
        if self._need.profile.nodes > 1 and self._registered != state.hardware_changed:
            # Who is on whose fabric depends on what other machines say of it.
            stale = None
            self._registered = state.hardware_changed
        self._seen = state.changed.count
        if stale is None:
            stale = {*machines, *self.fits, *self.rejected}
        for machine_id in {*stale, *self._changing}:
            if machine_id in machines:
                self._set(machine_id, *assess(state, machines[machine_id], self._need, capacity, heartbeats))
            else:
                self._set(machine_id, None, False)

    def again(self, state: State, machine_id: str, capacity: Capacity, heartbeats: Heartbeats | None) -> Fit | None:
        """Look once more at a machine about to be chosen: what telemetry says may have changed."""
        entry, changing = assess(state, state.facts.machines[machine_id], self._need, capacity, heartbeats)
        self._set(machine_id, entry, changing)
        return entry if isinstance(entry, Fit) else None

    def _set(self, machine_id: str, entry: Entry | None, changing: bool) -> None:
        """None: it is known no more."""
        if self.rejected.get(machine_id) == entry:
            return
        self.generation = next(self._generations)
        for check in self.rejected.pop(machine_id, ()):
            self.counts[check] -= 1
        self.fits.pop(machine_id, None)
        self._changing.discard(machine_id)
        if isinstance(entry, Fit):
            self.fits[machine_id] = entry
            return
        if entry is None:
            return
        self.rejected[machine_id] = entry
        for check in entry:
            self.counts[check] = self.counts.get(check, 0) + 1
        if changing:
            self._changing.add(machine_id)


class Tables:
    """The tables in use; those not asked for longest are dropped."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[object, ...], Table] = OrderedDict()
        self._generations = count(1)
        self.nowhere: dict[tuple[str, ...], tuple[tuple[object, ...], Explanation]] = {}
        """Model and profiles to why nothing fits, and the tables and their generations that say so."""

    def of(self, wanted: Requirement) -> Table:
        """The table of a requirement, a new one where nobody asked for it lately."""
        table = self._tables.get(wanted.shape)
        if table is None:
            table = self._tables[wanted.shape] = Table(wanted, self._generations)
            if len(self._tables) > TABLES_KEPT:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(wanted.shape)
        return table


def assess(
    state: State, machine: Machine, wanted: Requirement, capacity: Capacity, heartbeats: Heartbeats | None
) -> tuple[Entry, bool]:
    """One machine, for one need; and whether what telemetry says alone may change that it is turned away."""
    machine_id = machine.facts.machine_id
    asked = query(
        machine,
        wanted.profile,
        source=wanted.source,
        weights=wanted.weights,
        version=state.facts.versions.get(wanted.weights) if wanted.weights else None,
        mirrors=len(state.facts.mirrors),
        free=capacity.free(machine),
        heard=heartbeats.get(machine_id) if heartbeats is not None else None,
        regions=wanted.regions,
        lacking=wanted.lacking,
        each_gpu=wanted.each_gpu,
        gang=_apart(state, machine_id) if wanted.profile.nodes > 1 else None,
    )
    rejected = rejections(asked)
    if not rejected:
        return _fit(asked), False
    if not rejected.keys() <= CHANGING:
        return rejected, False
    held_by_others = sum(gpu.gpu_class == asked.profile.gpu_class for gpu in asked.free.gpus) > len(asked.gpus)
    return rejected, "disk" in rejected or held_by_others


def _apart(state: State, machine_id: str) -> str | None:
    member = state.fabrics().members[machine_id]
    if not member.refused:
        return None
    return f"can compute with no other machine: {member.refused}"


def _fit(asked: Query) -> Fit:
    machine, profile = asked.machine, asked.profile
    chosen = asked.chosen if isinstance(asked.chosen, Chosen) else None
    if profile.gpu_class is None:
        usable = usable_memory_mb(machine.facts.memory_total_mb)
        # The emptiest machine: engines on a CPU share its memory bandwidth.
        fit = max(0.0, (asked.free.memory_mb - (profile.memory_mb or 0)) / usable) if usable else 0.0
    else:
        # The fullest machine: whole machines stay free for models that need them.
        fit = 1.0 - (len(asked.gpus) - profile.gpus_per_node) / max(1, len(machine.facts.gpus))
    scores = {
        "weights": 1.0 if asked.weights and machine.holds(asked.weights) else 0.0,
        "fit": round(fit, 4),
        # Cores beside GPUs are for what runs on the GPUs.
        **({"plain": 0.0 if machine.facts.gpus else 1.0} if profile.gpu_class is None else {}),
        **(chosen.scores if chosen is not None else {}),
    }
    total = sum(WORTH[part] * score for part, score in scores.items())
    devices = chosen.devices if chosen is not None else ()
    return Fit(devices, scores, total, rack_of(machine), -round(total + UNKNOWN_THERE, 6))
