"""How fast a replica answers, held against what its weights and hardware let one expect."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from libs.events.replica import ReplicaMeasured
from libs.fit import hosts_of, pace_of

from .state import Replica, State
from .traffic import Traffic

REQUESTS_LEAST = 20


def may_be_measured(state: State, replica: Replica) -> bool:
    """It serves, nothing is told of it yet, and its weights' headers are known."""
    version = state.facts.versions.get(replica.weights) if replica.weights else None
    return replica.phase == "ready" and not replica.measured and version is not None and version.headers is not None


def measure(
    state: State, replicas: Iterable[Replica], traffic: Traffic | None, now: datetime
) -> ReplicaMeasured | None:
    """Of the first replica on which enough was measured and of which an estimate can be made."""
    if traffic is None:
        return None
    for replica in replicas:
        if not may_be_measured(state, replica):
            continue
        use = traffic.of(replica.replica_id)
        estimated = _estimated(state, replica) if use.paces >= REQUESTS_LEAST else None
        if estimated is not None and use.tokens_per_s is not None:
            return ReplicaMeasured(
                at=now,
                replica_id=replica.replica_id,
                model=replica.model,
                tokens_per_s=round(use.tokens_per_s, 1),
                estimated_tokens_per_s=round(estimated, 1),
                requests=use.paces,
            )
    return None


def _estimated(state: State, replica: Replica) -> float | None:
    headers = state.facts.versions[replica.weights].headers
    machines = [machine for m in replica.machines if (machine := state.facts.machines.get(m)) is not None]
    if headers is None or not machines:
        return None
    hosts = {host.id: host for host in hosts_of(machine.facts for machine in machines)}
    devices = {device for shard in replica.shards.values() for device in shard.placement.devices}
    return pace_of(headers, replica.profile, [hosts[m.facts.machine_id] for m in machines], devices)
