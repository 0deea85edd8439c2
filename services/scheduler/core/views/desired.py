"""What should run on a machine. Pure: who writes it adds the generation and the sealed keys."""

from __future__ import annotations

from libs.events.sources import kept_as, of_library, on_machines
from libs.events.views import (
    LoraWanted,
    ShardWanted,
    WeightsWanted,
)
from services.scheduler.core.state.facts import Replica, Shard
from services.scheduler.core.state.state import State

GENERATION = 1
"""A replica has one life, so it has one engine key."""


def wanted_on(state: State, machine_id: str) -> tuple[ShardWanted, ...]:
    """The whole of what should run on a machine, oldest first; keys not sealed in yet.

    What a lost machine ran stays in its list until something is decided about it: a machine that only lost
    its voice for a while must not stop an engine that may be wanted when it is heard again.
    """
    by_age = []
    for shard_id in state.held.get(machine_id, ()):
        replica = state.facts.replicas[shard_id.rpartition("-")[0]]
        shard = replica.shards[shard_id]
        if _should_run(replica):
            by_age.append((replica.placed, _shard(state, replica, shard)))
    return tuple(shard for _, shard in sorted(by_age, key=lambda pair: (pair[0], pair[1].shard_id)))


def _should_run(replica: Replica) -> bool:
    if replica.phase == "lost":
        # Of several shards one is not there: those that start do so together or not at all, those that serve may go on.
        return len(replica.shards) == 1 or replica.may_serve
    return replica.phase in ("placed", "ready", "draining")


def _shard(state: State, replica: Replica, shard: Shard) -> ShardWanted:
    profile = replica.profile
    loras = [(name, _weights(state, version)) for name, version in sorted(replica.loras.items())]
    return ShardWanted(
        shard_id=shard.placement.shard_id,
        replica_id=replica.replica_id,
        model=replica.model,
        served_name=replica.model,
        profile=profile.name,
        engine=profile.engine,
        generation=GENERATION,
        devices=shard.placement.devices,
        cores=shard.placement.cores,
        memory_mb=shard.placement.memory_mb,
        context_length=replica.context_length,
        parallel=profile.parallel,
        args=profile.args,
        env=profile.env,
        startup_timeout_s=profile.startup_timeout_s,
        weights=_weights(state, replica.weights),
        loras=tuple(LoraWanted(name=name, weights=weights) for name, weights in loras if weights is not None),
        draining=replica.phase == "draining",
        rank=list(replica.shards).index(shard.placement.shard_id),
        ranks=len(replica.shards),
        leader_address=_address(state, replica.machines[0]) if len(replica.shards) > 1 else "",
        leader_port=replica.leader_port,
        nics=shard.placement.nics,
        nvlink_domain=replica.nvlink_domain,
        tp=profile.tp,
        pp=profile.pp,
        allow_pickle=replica.allow_pickle,
    )


def _weights(state: State, name: str) -> WeightsWanted | None:
    if not of_library(name):
        kept, _, commit = (name, "", "") if on_machines(name) else kept_as(name).partition("@")
        return WeightsWanted(name=kept, version=commit, files=(), mirrors=(), source=name)
    version = state.facts.versions.get(name)
    if version is None:
        return None
    return WeightsWanted(
        name=version.name,
        version=version.version,
        files=version.files,
        mirrors=tuple(url for _, url in sorted(state.facts.mirrors.items())),
    )


def _address(state: State, machine_id: str) -> str:
    machine = state.facts.machines.get(machine_id)
    return machine.facts.address if machine is not None else ""
