"""One model: what its replicas are, what is wanted, and the difference as events."""

from __future__ import annotations

import base64
import hashlib
from datetime import timedelta

import msgspec

from libs.events.explanation import Explanation
from libs.events.model import ModelParked, ModelSpec, ModelUnplaced
from libs.events.replica import ReplicaPlaced, ShardPlacement
from services.scheduler.core.placement.checks import CHANGING
from services.scheduler.core.placement.search import Placement, Search
from services.scheduler.core.state.facts import Model, Replica
from services.scheduler.core.state.state import State

from .absence import give_up, returning
from .demand import (
    Group,
    autoscale,
    forgotten,
    judge,
    on_trial,
    watched,
    why_none,
)
from .lifecycle import PARK_AFTER, failing, next_step
from .nodes import Decision
from .preemption import evict, preempt, returning_capacity
from .round import Turn

RECHECK = timedelta(milliseconds=500)
"""A model with a replica on its way is looked at again after so long, for its timers."""
RECHECK_FOR_CAPACITY = timedelta(seconds=10)
"""One that lacks room of a kind only telemetry knows about (disk, memory of other programs)."""
LEADER_PORTS = 20_000, 29_000
"""Where ranks of a replica find each other: below the ports systems give to outgoing connections."""


class _Part(msgspec.Struct, frozen=True):
    """One definition of a model, and the replicas that are its or that it replaces."""

    spec: ModelSpec
    fingerprint: str
    groups: tuple[Group, ...]
    replicas: list[Replica]

    @property
    def wanted(self) -> int:
        return sum(group.count for group in self.groups)


Outdated = list[tuple[Replica, str]]


class ModelReconciler(Turn):
    """Brings one model from what there is of it to what is wanted."""

    def decide(self) -> None:
        """Fill ``decisions`` with what is due first: a replica's next step, a change of the model, or more or fewer."""
        for replica in self.replicas:
            step = next_step(self.state, self.model, replica, self.heartbeats, self.round.traffic, self.now)
            if step is not None:
                self.decisions.append(step)
        if any(r.phase != "ready" for r in self.replicas):
            self.recheck_after(RECHECK)
        if watched(self.model) or any(map(self.state.silent, self.replicas)):
            self.recheck_for_use()
        if self.decisions:
            return
        change = self._change_of_mind()
        if change is not None:
            self.decisions.append(change)
            return
        returning(self)
        if self.decisions:
            return
        trial = self.model.trial
        if trial is None:
            self._converge(_Part(self.model.spec, self.model.fingerprint, self.groups, self.replicas))
            return
        tried = [r for r in self.replicas if r.fingerprint == trial.fingerprint]
        stable = [r for r in self.replicas if r.fingerprint != trial.fingerprint]
        self._converge(_Part(self.model.spec, self.model.fingerprint, self.groups, stable))
        if not self.decisions:
            count = on_trial(self.state, self.model)
            groups = (Group(None, count),) if count else ()
            self._converge(_Part(trial.spec, trial.fingerprint, groups, tried))

    def _change_of_mind(self) -> Decision | None:
        """What is decided about the model itself."""
        model, traffic = self.model, self.round.traffic
        if model.removed:
            return None
        verdict = judge(model, self.replicas, traffic, self.now)
        if verdict is not None and model.trial is not None:
            return f"model.{model.name}:trial:{model.trial.position}", verdict
        if model.failures >= PARK_AFTER and model.parked is None:
            reason = f"{model.failures} failures in a row, the last: {model.last_failure}"
            parked = ModelParked(at=self.now, model=model.name, failures=model.failures, reason=reason)
            return f"EVENTS:{model.touched}", parked
        slept = forgotten(model, self.replicas, self.now)
        if slept is not None:
            return f"model.{model.name}:asked:{model.touched}", slept
        ready = [r for r in self.replicas if r.phase == "ready" and self.outdated(r) is None]
        scaled = autoscale(
            self.state, model, [r for r in ready if r.fingerprint == model.fingerprint], traffic, self.now
        )
        return (f"model.{model.name}:scale:{model.touched}", scaled) if scaled is not None else None

    # how many, and where

    def _converge(self, part: _Part) -> None:
        current, outdated = list[Replica](), Outdated()
        profiles = {group.profile for group in part.groups}
        for replica in part.replicas:
            if replica.phase in ("placed", "ready"):
                why = self.outdated(replica)
                if why is None and part.groups and not {None, replica.profile.name} & profiles:
                    why = f"none is wanted with the profile {replica.profile.name}"
                if why is None:
                    current.append(replica)
                else:
                    outdated.append((replica, why))
        missing = self._drop_surplus(part, current)
        outdated = self._drop_outdated(part, current, outdated)
        if not missing or self.model.parked is not None:
            return
        if self.heartbeats is None:
            return  # a machine that is not heard takes up nothing, and which are heard is not known
        if self.model.retry_at is not None and self.now < self.model.retry_at:
            self.recheck_after(self.model.retry_at - self.now)
            return
        allowed = self._allowed(part, current, outdated)
        for group in missing:
            count = min(allowed, group.count)
            if not count:
                continue
            search = Search(
                self.state,
                self.model,
                self.round.capacity,
                self.heartbeats,
                self.round.tables,
                spec=part.spec,
                profiles=None if group.profile is None else (group.profile,),
            )
            for _ in range(count):
                if self.round.starts.full:
                    self.queued = True
                    return
                placement = search.best()
                if placement.machine_id is None:
                    self._no_capacity(search, placement, current, outdated)
                    break
                if self.round.starts.full_on(spot.machine_id for spot in placement.spots):
                    # Where it goes does not depend on how busy machines are, but when.
                    self.lacks_capacity = True
                    self.recheck_after(RECHECK_FOR_CAPACITY)
                    break
                self._place(part, placement, len(current), outdated)
                allowed -= 1

    def _drop_surplus(self, part: _Part, current: list[Replica]) -> list[Group]:
        """What does not serve yet goes first, then the youngest. Returns what is missing."""
        missing: list[Group] = []
        for group in part.groups or (Group(None, 0),):
            here = [r for r in current if group.profile is None or r.profile.name == group.profile]
            surplus = len(here) - group.count
            for replica in sorted(here, key=lambda r: (self.serves(r), -r.placed))[: max(0, surplus)]:
                self.drain(replica, self._why_fewer(part))
                current.remove(replica)
            if surplus < 0:
                missing.append(Group(group.profile, -surplus))
        return missing

    def _why_fewer(self, part: _Part) -> str:
        return f"{part.wanted} wanted" if part.wanted else why_none(self.state, self.model)

    def _drop_outdated(self, part: _Part, current: list[Replica], outdated: Outdated) -> Outdated:
        """Those that serve stay until others serve in their place, unless they are restarted in place."""
        serving = [(r, why) for r, why in outdated if r.phase == "ready"]
        for replica, why in outdated:
            if replica.phase != "ready":
                self.drain(replica, why if part.wanted else self._why_fewer(part))
        spare = sum(map(self.serves, current)) + len(serving) - part.wanted
        spare = max(0, min(spare, len(serving)))
        whole = len(current) + len(serving) >= part.wanted and all(r.phase == "ready" for r in current)
        if not spare and self._in_place(serving) and whole and not self._leaving():
            spare = 1
        for replica, why in serving[:spare]:
            self.drain(replica, why if part.wanted else self._why_fewer(part))
        return serving[spare:]

    def _in_place(self, outdated: Outdated) -> bool:
        return self.model.in_place and any(r.placed < self.model.restarted for r, _ in outdated)

    def _leaving(self) -> bool:
        return any(r.phase in ("draining", "stopping", "failed") for r in self.replicas)

    def _allowed(self, part: _Part, current: list[Replica], outdated: Outdated) -> int:
        """While old ones are replaced there is one more than wanted, not twice as many; in place there is none more."""
        if not outdated:
            return part.wanted
        more = 0 if self._in_place(outdated) else 1
        return max(0, part.wanted + more - len(current) - len(outdated))

    def _no_capacity(self, search: Search, placement: Placement, current: list[Replica], outdated: Outdated) -> None:
        first, self.lacks_capacity = not self.lacks_capacity, True
        if CHANGING & placement.explanation.rejected.keys():
            self.recheck_after(RECHECK_FOR_CAPACITY)
        if "silent" in placement.explanation.rejected:
            self.recheck_for_use()
        coming = returning_capacity(self, search)
        if coming is not None:
            self._reserve(coming)
            return
        starting = any(r.phase != "ready" for r in current)
        explanation = placement.explanation
        if failing(self.state, self.model, self.now):
            self.recheck_for_use()  # what runs may have worked for long enough then
        elif not starting:
            if self._make_way(search, outdated) or give_up(self, search):
                return
            taken = evict(self, search) or preempt(self, search)
            if taken:
                self.decisions += taken
                return
        if outdated and all(r.placed < self.model.restarted for r, _ in outdated):
            hint = "what runs goes on serving: a restart in place stops each first"
            explanation = msgspec.structs.replace(explanation, summary=f"{explanation.summary}; {hint}")
        if not starting:
            self._force(outdated)
        if first:
            # One sentence for a model, or those for its profiles would take turns.
            self._unplaced(explanation)

    def _reserve(self, placement: Placement) -> None:
        shards = self._shards("reserved", placement)
        self.reserved += shards
        for shard in shards:
            self.round.capacity.reserve(self.model.name, shard)

    def _unplaced(self, explanation: Explanation) -> None:
        known = self.model.unplaced
        if known is None or known.rejected.keys() != explanation.rejected.keys():
            unplaced = ModelUnplaced(at=self.now, model=self.model.name, explanation=explanation)
            self.decisions.append((f"model.{self.model.name}:unplaced:{self.model.touched}", unplaced))

    def _make_way(self, search: Search, outdated: Outdated) -> bool:
        """Stop an outdated replica if, and only if, its successor fits in the room it gives back.

        Not for a restart by hand: what runs is as good as what would come.
        """
        for replica, why in outdated:
            restarted = replica.fingerprint == self.model.fingerprint and replica.placed < self.model.restarted
            if not restarted and search.placements_without(replica.shards, replica.machines):
                self.drain(replica, f"{why}; its successor needs its room")
                return True
        return False

    def _force(self, outdated: Outdated) -> None:
        """Stop what is on a machine that is drained of what has nowhere to go as well."""
        machines = self.state.facts.machines
        for replica, why in outdated:
            if any(m in machines and machines[m].mode == "drained" and machines[m].force for m in replica.machines):
                self.drain(replica, f"{why}; it has nowhere to go")

    def _place(self, part: _Part, placement: Placement, running: int, outdated: Outdated) -> None:
        assert placement.profile is not None
        profile = placement.profile
        already = sum(isinstance(event, ReplicaPlaced) for _, event in self.decisions)
        replica_id = replica_name(self.model, self.state.term, already)
        shards = self._shards(replica_id, placement)
        self.round.leaving += [replica for replica, _ in outdated[:1]]
        for shard in shards:
            self.round.capacity.reserve(self.model.name, shard)
        self.round.starts.add(shard.machine_id for shard in shards)
        self.emit(
            ReplicaPlaced(
                at=self.now,
                replica_id=replica_id,
                model=self.model.name,
                profile=profile.name,
                fingerprint=part.fingerprint,
                weights=placement.weights,
                shards=shards,
                explanation=placement.explanation,
                reason=self._reason(part, running + already, outdated),
                nvlink_domain=placement.domain,
                fabric=placement.fabric,
                loras=self.state.loras_of(part.spec),
                leader_port=leader_port(self.state, replica_id, shards) if len(shards) > 1 else 0,
            )
        )

    def _shards(self, replica_id: str, placement: Placement) -> tuple[ShardPlacement, ...]:
        profile = placement.profile
        assert profile is not None
        return tuple(
            ShardPlacement(
                shard_id=f"{replica_id}-{rank}",
                machine_id=spot.machine_id,
                devices=spot.devices,
                cores=profile.cores,
                memory_mb=profile.memory_mb or 0,
                nics=spot.nics,
            )
            for rank, spot in enumerate(placement.spots)
        )

    def _reason(self, part: _Part, running: int, outdated: Outdated) -> str:
        if outdated:
            replica, why = outdated[0]
            return f"takes the place of {replica.replica_id}: {why}"
        model = self.model
        if model.trial is not None and part.fingerprint == model.trial.fingerprint:
            return "the changed definition is tried"
        tried = any(r.placed > model.failed_position and r.phase in ("placed", "ready") for r in self.replicas)
        if not tried and failing(self.state, model, self.now):
            return f"try {model.failures + 1}"
        lost = [r for r in self.replicas if r.phase == "lost"]
        if lost:
            return f"takes the place of {lost[0].replica_id}: {lost[0].reason}"
        return f"{running} of {part.wanted} wanted were there"


def replica_name(model: Model, term: int, already: int) -> str:
    """The id of the next replica, from what the log says of the model and who leads. No other has it, not even one that
    the log forgot when it was put back from a copy: a machine may still run that."""
    text = f"{model.name}:{model.born}:{model.placings + already}" + (f":{term}" if term else "")
    return "r-" + base64.b32encode(hashlib.sha256(text.encode()).digest())[:8].decode().lower()


def leader_port(state: State, replica_id: str, shards: tuple[ShardPlacement, ...]) -> int:
    """A port of the leading machine that no other replica over several machines uses there."""
    low, high = LEADER_PORTS
    taken = {
        state.facts.replicas[shard_id.rpartition("-")[0]].leader_port
        for shard_id in state.held.get(shards[0].machine_id, ())
    }
    first = int.from_bytes(hashlib.sha256(replica_id.encode()).digest()[:4], "big") % (high - low)
    ports = (low + (first + i) % (high - low) for i in range(high - low))
    return next(port for port in ports if port not in taken)
