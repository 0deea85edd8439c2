"""What gateways say changes what runs: models on demand, more and fewer replicas, trials."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import msgspec
import pytest

from libs.events.commands import PromoteModel
from libs.events.leadership import SchedulerElected
from libs.events.model import (
    Canary,
    ModelAutoscaled,
    ModelPromoted,
    ModelRolledBack,
    ModelSlept,
    ModelSpec,
    ModelUnplaced,
    Scaling,
)
from libs.events.replica import ReplicaPlaced
from libs.testing import eventually
from tests.unit.scheduler.harness import gpu_profile, model_spec

from .agent import SchedulerProcess
from .cluster import HASTENED, WAIT_S, Cluster


def on_demand(name: str, *, min_lifetime_s: int = 0, idle_s: int = 0) -> ModelSpec:
    scaling = Scaling(min=0, on_demand=True, evict_after_idle_s=idle_s, min_lifetime_s=min_lifetime_s)
    return msgspec.structs.replace(model_spec(name, 0, gpu_profile()), scaling=scaling)


async def test_a_model_sleeps_until_it_is_asked_for_and_makes_way_only_when_idle(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=1)
    gateway = cluster.gateway()
    await cluster.define(on_demand("a"), on_demand("b"))
    await eventually(lambda: cluster.routes["b"].on_demand, WAIT_S)
    assert not cluster.events(ReplicaPlaced)
    await gateway.request("a")
    [busy] = cluster.endpoints("a")
    gateway.in_flight[busy.replica_id] = 1
    await asyncio.sleep(0.5)  # until it is heard
    asked = asyncio.create_task(gateway.request("b"))
    await cluster.happened(ModelUnplaced, model="b")
    await asyncio.sleep(1.5)  # longer than anything an idle model is given
    assert cluster.endpoints("a") == [busy], "a request is in flight"
    del gateway.in_flight[busy.replica_id]
    await asked
    slept = await cluster.happened(ModelSlept)
    assert (slept.model, slept.for_model) == ("a", "b")


async def test_two_models_asked_for_in_turn_on_one_card_do_not_thrash(cluster: Cluster) -> None:
    """Two people who each ask their own model again as soon as it has answered."""
    lifetime_s = 1
    await cluster.machine("g1", gpus=1)
    gateway = cluster.gateway()
    await cluster.define(*(on_demand(name, min_lifetime_s=lifetime_s) for name in ("a", "b")))
    answered = {"a": 0, "b": 0}

    async def person(model: str) -> None:
        while True:
            await gateway.request(model)
            answered[model] += 1
            await asyncio.sleep(0.4)

    people = [asyncio.create_task(person(model)) for model in answered]
    begun = time.monotonic()
    await cluster.happened(ModelSlept, 3)
    took_s = time.monotonic() - begun
    for one in people:
        one.cancel()
    await asyncio.gather(*people, return_exceptions=True)
    switches = cluster.events(ModelSlept)
    assert len(switches) <= took_s / lifetime_s + 1
    for slept, after in itertools.pairwise(switches):
        assert slept.model != after.model
        assert (after.at - slept.at).total_seconds() >= lifetime_s
    assert min(answered.values()) >= 3, "both are served, and more than once each time"


async def test_numbers_follow_use_and_neither_flap_nor_are_forgotten_when_the_leader_is_killed(
    unled: Cluster, tmp_path: Path
) -> None:
    cluster = unled
    await cluster.machine("g1", gpus=2)
    gateway = cluster.gateway()
    leader = SchedulerProcess(cluster.server, tmp_path, "s-1", HASTENED)
    try:
        spec = model_spec("m", 1, gpu_profile(parallel=2))
        await cluster.define(msgspec.structs.replace(spec, scaling=Scaling(min=1, max=2, target_waiting=1)))
        [only] = await cluster.serves("m")

        def use(in_flight: int) -> None:
            """So many requests at once, shared out to what serves."""
            there = cluster.endpoints("m")
            gateway.in_flight = {one.replica_id: in_flight // len(there) for one in there}

        use(7)
        await cluster.serves("m", 2)
        up = await cluster.happened(ModelAutoscaled)
        assert (up.before, up.waiting_per_replica > 1) == (1, True)
        use(4)  # each has as much as it works on at once
        decided = len(cluster.events(ModelAutoscaled))
        leader.kill()
        leader = SchedulerProcess(cluster.server, tmp_path, "s-1", HASTENED)
        await cluster.happened(SchedulerElected, 2)
        await asyncio.sleep(2.5)  # longer than its windows
        assert len(cluster.events(ModelAutoscaled)) == decided
        assert len(cluster.endpoints("m")) == 2
        gateway.in_flight = {}
        assert await cluster.serves("m") == [only]
        assert [(one.before, one.replicas) for one in cluster.events(ModelAutoscaled)] == [(1, 2), (2, 1)]
    finally:
        leader.kill()


@pytest.mark.slow
async def test_a_slow_first_token_starts_another(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=2)
    gateway = cluster.gateway()
    spec = model_spec("m", 1, gpu_profile())
    await cluster.define(msgspec.structs.replace(spec, scaling=Scaling(min=1, max=2, target_ttft_ms=200)))
    [only] = await cluster.serves("m")

    async def slowly() -> None:
        while True:
            await gateway.served(only, "m", 2, first_token_ms=700.0)
            await asyncio.sleep(0.2)

    serving = asyncio.create_task(slowly())
    await cluster.serves("m", 2)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    up = await cluster.happened(ModelAutoscaled)
    assert (up.before, up.replicas, up.ttft_ms) == (1, 2, 700.0)


async def test_a_trial_that_does_as_well_takes_over(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=3)
    gateways = [cluster.gateway("gw-1"), cluster.gateway("gw-2")]
    spec = model_spec("m", 2, gpu_profile(), canary=Canary(percent=25, min_requests=10))
    await cluster.define(spec)
    await cluster.serves("m", 2)
    await cluster.define(msgspec.structs.replace(spec, context_length=2048))
    endpoints = await cluster.serves("m", 3)
    tried = cluster.routes["m"]
    assert (tried.canary_percent, tried.context_length) == (25, spec.context_length)
    [canary] = [one for one in endpoints if one.canary]
    await gateways[0].served(canary, "m", 6)
    await asyncio.sleep(1)  # and nothing is judged on too little
    assert not cluster.events(ModelPromoted)
    await gateways[1].served(canary, "m", 6)
    promoted = await cluster.happened(ModelPromoted)
    assert promoted.trial.requests == 12
    await eventually(lambda: len(cluster.placed("m")) == 4, WAIT_S)
    assert canary.replica_id in {one.replica_id for one in await cluster.serves("m", 2)}
    assert cluster.routes["m"].context_length == 2048
    assert 0 not in cluster.served["m"][cluster.served["m"].index(2) :]


async def test_a_trial_that_fails_more_often_is_rolled_back(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=2)
    gateway = cluster.gateway()
    spec = model_spec("m", 1, gpu_profile(), canary=Canary(percent=25, min_requests=10))
    await cluster.define(spec)
    [stable] = await cluster.serves("m")
    await gateway.served(stable, "m", 50)
    await cluster.define(msgspec.structs.replace(spec, context_length=2048))
    [canary] = [one for one in await cluster.serves("m", 2) if one.canary]
    await gateway.served(canary, "m", 20, failed=5)
    back = await cluster.happened(ModelRolledBack)
    assert (back.trial.failed, back.stable.failed) == (5, 0)
    assert await cluster.serves("m") == [stable]
    assert cluster.routes["m"].canary_percent == 0


@pytest.mark.slow
async def test_a_trial_that_does_not_start_is_rolled_back(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=2)
    spec = model_spec("m", 1, gpu_profile(), canary=Canary())
    await cluster.define(spec)
    [stable] = await cluster.serves("m")
    broken = gpu_profile(args=("--fail-status", "500"))
    await cluster.define(msgspec.structs.replace(spec, profiles=(broken,)))
    back = await cluster.happened(ModelRolledBack)
    assert "it does not start" in back.reason
    assert await cluster.serves("m") == [stable]


@pytest.mark.slow
async def test_a_trial_ended_by_hand(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=2)
    spec = model_spec("m", 1, gpu_profile(), canary=Canary())
    await cluster.define(spec)
    [old] = await cluster.serves("m")
    await cluster.define(msgspec.structs.replace(spec, context_length=2048))
    [canary] = [one for one in await cluster.serves("m", 2) if one.canary]
    await cluster.command(PromoteModel(model="m"))
    assert await cluster.serves("m") == [msgspec.structs.replace(canary, canary=False)]
    assert old.replica_id != canary.replica_id
