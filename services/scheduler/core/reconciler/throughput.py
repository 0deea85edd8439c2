"""How fast a replica answers, held against what its weights and hardware let one expect."""

from __future__ import annotations

from datetime import datetime

from libs.events.replica import ReplicaMeasured
from libs.fit import hosts_of, pace_of
from services.scheduler.core.inputs.traffic import PACES_LEAST, Traffic
from services.scheduler.core.state.facts import Replica
from services.scheduler.core.state.state import State

from .nodes import Decision


class Throughput:
    """Each replica is told of once; what is kept here only spares looking again."""

    def __init__(self) -> None:
        self._done: set[str] = set()

    def decisions(self, state: State, traffic: Traffic | None, now: datetime) -> list[Decision]:
        """What was measured and not said yet, one event a replica."""
        decisions: list[Decision] = []
        if traffic is None:
            return decisions
        if len(self._done) > 2 * len(state.facts.replicas):
            self._done &= state.facts.replicas.keys()
        for replica_id in sorted(traffic.paced - self._done):
            replica = state.facts.replicas.get(replica_id)
            if replica is not None and replica.phase != "ready":
                continue  # it may be back
            measured = _measured(state, replica, traffic, now) if replica is not None else None
            if measured is not None:
                decisions.append((f"replica.{replica_id}:measured", measured))
            else:
                self._done.add(replica_id)
        return decisions


def _measured(state: State, replica: Replica, traffic: Traffic, now: datetime) -> ReplicaMeasured | None:
    """None: it was told already, or no estimate can be made of it."""
    use = traffic.of(replica.replica_id)
    if replica.measured or use.tokens_per_s is None or use.paces < PACES_LEAST:
        return None
    estimated = _estimated(state, replica)
    if estimated is None:
        return None
    return ReplicaMeasured(
        at=now,
        replica_id=replica.replica_id,
        model=replica.model,
        tokens_per_s=round(use.tokens_per_s, 1),
        estimated_tokens_per_s=round(estimated, 1),
        requests=use.paces,
    )


def _estimated(state: State, replica: Replica) -> float | None:
    version = state.facts.versions.get(replica.weights)
    machines = [machine for m in replica.machines if (machine := state.facts.machines.get(m)) is not None]
    if version is None or version.headers is None or not machines:
        return None
    hosts = {host.id: host for host in hosts_of(machine.facts for machine in machines)}
    devices = {device for shard in replica.shards.values() for device in shard.placement.devices}
    return pace_of(version.headers, replica.profile, [hosts[m.facts.machine_id] for m in machines], devices)
