"""Hard anti-affinity: where a model's replicas may not stand because of who stands there already.

A rule holds in both directions: a model that keeps away from another is kept away from as well. What is on its way
out counts until it is gone; what a lost machine ran does not, unless it comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from libs.events.model import AntiAffinity, ModelSpec
from services.scheduler.core.state.state import State

from .capacity import Capacity, rack_of


def conflicts(state: State, spec: ModelSpec, capacity: Capacity) -> Mapping[str, str]:
    """Machine id to why no replica of this definition may go there. ``capacity``: with what is supposed to be gone."""
    reasons: dict[str, str] = {}
    for other, rule in _rules(state, spec):
        both = "replicas of this model" if other == spec.name else f"{spec.name} and {other}"
        places = _places(state, capacity, other)
        if rule.within == "node":
            for machine_id, replica in places.items():
                reasons.setdefault(machine_id, f"has {replica} of {other}, and {both} keep to different machines")
            continue
        racks: dict[str, str] = {}
        for machine_id, replica in places.items():
            racks.setdefault(rack_of(state.facts.machines[machine_id]), f"{replica} of {other} on {machine_id}")
        for machine_id, machine in state.facts.machines.items() if racks else ():
            if (there := racks.get(rack := rack_of(machine))) is not None:
                reasons.setdefault(machine_id, f"its rack {rack} has {there}, and {both} keep to different racks")
    return reasons


def _rules(state: State, spec: ModelSpec) -> Iterator[tuple[str, AntiAffinity]]:
    """Model to keep away from, and how far."""
    for rule in spec.anti_affinity:
        for name in rule.models or (spec.name,):
            yield name, rule
    for name, model in state.facts.models.items():
        if name != spec.name:
            for rule in model.spec.anti_affinity:
                if spec.name in rule.models:
                    yield name, rule


def _places(state: State, capacity: Capacity, model: str) -> dict[str, str]:
    """Machine id to which replica of the model is there, or is being placed there in this round."""
    places = dict.fromkeys(capacity.reserved_for(model), "one placed a moment ago")
    for replica in state.of_model.get(model, {}).values():
        for shard_id, shard in replica.shards.items():
            machine = state.facts.machines.get(shard.placement.machine_id)
            if not shard.ended and capacity.counts(shard_id) and machine is not None and not machine.lost:
                places[machine.facts.machine_id] = replica.replica_id
    return places
