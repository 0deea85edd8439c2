"""Room for a model that lacks it: coming back by itself, from idle on-demand models, from models of a lower class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from libs.events.model import ModelSlept
from libs.events.replica import ReplicaDraining
from services.scheduler.core.placement.search import Placement, Search
from services.scheduler.core.state.facts import Model, Replica
from services.scheduler.core.state.state import State

from .demand import CLASSES, evictable
from .nodes import Decision, milliseconds
from .round import Turn

MAX_VICTIMS = 64
"""Replicas thought away one after another for one that spans machines."""


def _shards(replicas: Iterable[Replica]) -> frozenset[str]:
    return frozenset(shard_id for replica in replicas for shard_id in replica.shards)


def _machines(replicas: Iterable[Replica]) -> set[str]:
    return {machine_id for replica in replicas for machine_id in replica.machines}


def returning_capacity(turn: Turn, search: Search) -> Placement | None:
    """Where it fits once those are gone that are on their way out, on machines that can still say so.

    Those of other models that are being replaced count too: their successors are starting.
    """
    state, round_ = turn.state, turn.round
    if round_.replaced is None:
        round_.replaced = _replaced(state)
    own = turn.model.name
    leaving = [*state.leaving.values(), *round_.leaving]
    leaving += [r for r in round_.replaced if r.model != own]
    machines = state.facts.machines
    coming = [r for r in leaving if not any(m in machines and machines[m].lost for m in r.machines)]
    placements = search.placements_without(_shards(coming), _machines(coming)) if coming else []
    return placements[0] if placements else None


def _replaced(state: State) -> list[Replica]:
    replaced: list[Replica] = []
    for model in state.facts.models.values():
        replicas = state.of_model[model.name].values()
        starting = any(r.phase == "placed" and not _old(model, r) for r in replicas)
        if starting:
            replaced += [r for r in replicas if r.phase == "ready" and _old(model, r)]
    return replaced


def _old(model: Model, replica: Replica) -> bool:
    """It runs what is neither in force nor on trial, or is to be restarted."""
    if model.trial is not None and replica.fingerprint == model.trial.fingerprint:
        return False
    return replica.fingerprint != model.fingerprint or replica.placed < model.restarted


def evict(turn: Turn, search: Search) -> list[Decision]:
    """Put idle on-demand models to sleep, the longest idle first, as few as will do. Empty: that gives no room."""
    idle: list[tuple[timedelta, Model, list[Replica]]] = []
    for model in turn.state.facts.models.values():
        if not _gives_way(turn, model) or not model.spec.scaling.on_demand:
            continue
        replicas = [r for r in turn.state.replicas_of(model.name) if r.phase in ("placed", "ready")]
        if replicas:
            turn.recheck_for_use()  # it may be idle long enough then
        since = evictable(model, turn.state.replicas_of(model.name), turn.round.traffic, turn.now)
        if since is not None:
            idle.append((since, model, replicas))
    idle.sort(key=lambda entry: (-entry[0], entry[1].name))
    chosen = next((([entry]) for entry in idle if _fits(search, entry[2])), None)
    if chosen is None:
        for count in range(2, len(idle) + 1):
            if _fits(search, [r for _, _, replicas in idle[:count] for r in replicas]):
                chosen = idle[:count]
                break
    decisions: list[Decision] = []
    for since, model, replicas in chosen or ():
        turn.round.disturbed.add(model.name)
        seconds = int(since.total_seconds())
        reason = f"it has been idle for {seconds} s, and {turn.model.name} needs its room"
        slept = ModelSlept(
            at=turn.now, model=model.name, reason=reason, idle_ms=milliseconds(since), for_model=turn.model.name
        )
        decisions.append((f"model.{model.name}:idle:{model.touched}", slept))
        decisions += [_drained(turn, replica, reason) for replica in replicas]
    return decisions


def preempt(turn: Turn, search: Search) -> list[Decision]:
    """Stop replicas of models of a lower class, as few as will do. Empty: that gives no room."""
    mine = CLASSES[turn.model.spec.priority_class]
    victims: list[Replica] = []
    for model in turn.state.facts.models.values():
        if CLASSES[model.spec.priority_class] > mine and _gives_way(turn, model):
            victims += [r for r in turn.state.replicas_of(model.name) if r.phase in ("placed", "ready")]
    if not victims:
        return []
    models = turn.state.facts.models
    # The lowest class first, what does not serve yet before what does, the youngest first.
    victims.sort(key=lambda r: (-CLASSES[models[r.model].spec.priority_class], r.phase == "ready", -r.placed))
    least: list[Replica] | None = None
    for placement in search.placements_without(_shards(victims), _machines(victims)):
        fewest = _fewest(search, placement, victims)
        if fewest is not None and (least is None or len(fewest) < len(least)):
            least = fewest
    reason = f"makes way for {turn.model.name}, which is of the class {turn.model.spec.priority_class}"
    turn.round.disturbed.update(r.model for r in least or ())
    return [_drained(turn, replica, reason) for replica in least or ()]


def _fewest(search: Search, placement: Placement, victims: Sequence[Replica]) -> list[Replica] | None:
    """The fewest of the victims, in their order, that make room where it would go."""
    where = {spot.machine_id for spot in placement.spots}
    there = [r for r in victims if where & set(r.machines)][:MAX_VICTIMS]
    for count in range(1, len(there) + 1):
        if _fits(search, there[:count], where):
            chosen = there[:count]
            for replica in list(chosen):
                rest = [r for r in chosen if r is not replica]
                if rest and _fits(search, rest, where):
                    chosen = rest
            return chosen
    return None


def _fits(search: Search, gone: Sequence[Replica], where: set[str] | None = None) -> bool:
    machines = _machines(gone) if where is None else where
    return bool(search.placements_without(_shards(gone), machines))


def _gives_way(turn: Turn, model: Model) -> bool:
    """Whether a model may be made to: not one that stands above, nor one of which this round has decided already."""
    if model.name == turn.model.name or model.name in turn.round.acted or model.name in turn.round.disturbed:
        return False
    return CLASSES[model.spec.priority_class] >= CLASSES[turn.model.spec.priority_class]


def _drained(turn: Turn, replica: Replica, reason: str) -> Decision:
    model = turn.state.facts.models[replica.model]
    turn.round.leaving.append(replica)
    drain = ReplicaDraining(at=turn.now, replica_id=replica.replica_id, model=replica.model, reason=reason)
    return f"EVENTS:{model.touched}", drain
