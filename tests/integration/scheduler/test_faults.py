"""Engines, cards and machines fail: what is wanted comes back elsewhere, or it is said why not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from libs.events.commands import RemoveModel, RestartModel, ScaleModel
from libs.events.machine import MachineRegistered
from libs.events.model import ModelParked, ModelUnparked, ModelUnplaced, Scaling
from libs.events.node import NodeLost, NodeReturned
from libs.events.replica import (
    ReplicaDraining,
    ReplicaFailed,
    ReplicaLost,
    ReplicaReady,
    ReplicaRecovered,
    ReplicaStopped,
)
from libs.events.shard import ShardAdopted, ShardFailed, ShardReady, ShardStopped
from libs.events.views import Desired
from libs.testing import eventually
from services.nodeagent.stop_all import stop_all
from tests.unit.nodeagent.wanted import desired, shard
from tests.unit.scheduler.harness import cpu_profile, gpu_profile, model_spec

from .agent import scheduler
from .cluster import WAIT_S, Cluster


async def test_a_killed_engine_is_replaced_at_once(cluster: Cluster) -> None:
    machine = await cluster.machine("g1", gpus=1)
    await cluster.define(model_spec("m", 1, gpu_profile()))
    [old] = await cluster.serves("m")
    machine.kill(f"{old.replica_id}-0")
    failed = await cluster.happened(ReplicaFailed, replica_id=old.replica_id)
    assert "failed on g1 while ready" in failed.reason
    assert failed.retry_at is None
    await cluster.serves("m", 0)
    [new] = await cluster.serves("m")
    assert new.replica_id != old.replica_id


async def test_a_model_that_never_starts_is_parked_until_a_person_does_something(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=1)
    spec = model_spec("m", 1, gpu_profile(args=("--fail-status", "500")))
    await cluster.define(spec)
    parked = await cluster.happened(ModelParked)
    assert parked.failures == len(cluster.placed("m")) == 5
    assert "its first token failed: it answered HTTP 500" in parked.reason
    waits = [(one.retry_at - one.at).total_seconds() for one in cluster.events(ReplicaFailed) if one.retry_at]
    assert waits == sorted(waits)
    assert waits[-1] == 8 * waits[0]
    await asyncio.sleep(0.5)
    assert len(cluster.placed("m")) == 5
    await cluster.command(RestartModel(model="m"))
    await cluster.happened(ModelUnparked)
    await cluster.happened(ReplicaFailed, 6)
    await cluster.define(msgspec.structs.replace(spec, profiles=(gpu_profile(),)))
    await cluster.serves("m")


@pytest.mark.slow  # no model may state less than ten seconds for its start
async def test_a_start_without_progress_ends_and_says_in_which_phase(cluster: Cluster) -> None:
    machine = await cluster.machine("g1", gpus=1)
    stuck = gpu_profile(args=("--load-s", "600"), startup_timeout_s=10)
    await cluster.define(model_spec("m", 1, stuck))
    failed = await cluster.happened(ReplicaFailed)
    assert "failed on g1 while loading: the engine was not ready" in failed.reason
    ended = cluster.events(ShardFailed)[0]
    assert ended.shard_id not in machine.engines


async def test_the_death_of_one_rank_ends_its_gang_which_starts_anew_as_a_whole(cluster: Cluster) -> None:
    machines = [await cluster.machine(name, gpus=2, fabric="1") for name in ("g1", "g2")]
    await cluster.machine("g3", gpus=2, fabric="2")
    await cluster.define(model_spec("big", 1, gpu_profile(gpus=2, nodes=2)))
    [old] = await cluster.serves("big")
    [placed] = cluster.placed("big")
    assert {shard.machine_id for shard in placed.shards} == {"g1", "g2"}, "never over two fabrics"
    [rank_1] = [shard for shard in placed.shards if shard.shard_id.endswith("-1")]
    cluster.machines[rank_1.machine_id].kill(rank_1.shard_id)
    failed = await cluster.happened(ReplicaFailed)
    assert failed.replica_id == old.replica_id
    await cluster.happened(ReplicaStopped, replica_id=old.replica_id)
    [new] = await cluster.serves("big")
    assert new.replica_id != old.replica_id
    running = {shard_id for machine in machines for shard_id in machine.engines}
    assert running == {f"{new.replica_id}-0", f"{new.replica_id}-1"}


async def test_a_gang_that_is_wanted_no_more_is_gone_as_soon_as_its_leader_has_no_request(cluster: Cluster) -> None:
    for name in ("g1", "g2"):
        await cluster.machine(name, gpus=2, fabric="1")
    await cluster.define(model_spec("big", 1, gpu_profile(gpus=2, nodes=2)))
    [old] = await cluster.serves("big")
    await cluster.command(ScaleModel(model="big", scaling=Scaling(min=0)))
    draining = await cluster.happened(ReplicaDraining, replica_id=old.replica_id)
    stopped = await cluster.happened(ReplicaStopped, replica_id=old.replica_id)
    assert (stopped.at - draining.at).total_seconds() < 60, "the grace for requests is five minutes"
    assert "no request is left" in stopped.reason


async def test_a_silent_machine_is_left_and_what_it_still_runs_is_stopped_when_it_is_back(cluster: Cluster) -> None:
    for name in ("g1", "g2"):
        await cluster.machine(name, gpus=1)
    await cluster.define(model_spec("m", 1, gpu_profile()))
    [old] = await cluster.serves("m")
    machine = cluster.machines[old.machine_id]
    machine.happens("silent")
    lost = await cluster.happened(NodeLost)
    assert (lost.machine_id, lost.silent_ms >= lost.deadline_ms) == (old.machine_id, True)
    await cluster.serves("m", on={"g1", "g2"} - {old.machine_id})
    assert machine.engines, "nothing is stopped because it was not heard"
    machine.happens("heard")
    await cluster.happened(NodeReturned)
    draining = await cluster.happened(ReplicaDraining, replica_id=old.replica_id)
    assert "others serve in its place" in draining.reason
    await cluster.happened(ReplicaStopped, replica_id=old.replica_id)
    assert not machine.engines


async def test_machines_that_come_back_serve_with_the_engines_they_had_and_stop_what_nobody_wants_any_more(
    cluster: Cluster,
) -> None:
    machines = [await cluster.machine(name, gpus=1) for name in ("g1", "g2")]
    await cluster.define(model_spec("m", 1, gpu_profile()), model_spec("n", 1, gpu_profile()))
    [old], [other] = await cluster.serves("m"), await cluster.serves("n")
    engines = {name: machine.engines for name, machine in cluster.machines.items()}
    await asyncio.gather(*(machine.stop() for machine in machines))
    await cluster.happened(ReplicaLost, 2)
    silent = [msgspec.structs.replace(old, silent=True)]
    await eventually(lambda: cluster.endpoints("m") == silent, WAIT_S, what="it may be asked, and is marked")
    assert await cluster.happened(ModelUnplaced, model="m")
    await cluster.command(RemoveModel(model="n"))
    await asyncio.gather(*(machine.start() for machine in machines))
    await cluster.happened(ReplicaRecovered, replica_id=old.replica_id)
    await eventually(lambda: cluster.endpoints("m") == [old], WAIT_S)
    assert cluster.machines[old.machine_id].engines == engines[old.machine_id]
    assert cluster.events(ShardAdopted, replica_id=old.replica_id)
    await cluster.happened(ReplicaStopped, replica_id=other.replica_id)
    await eventually(lambda: not cluster.machines[other.machine_id].engines, WAIT_S)


async def test_what_nobody_asked_for_is_stopped_and_nothing_is_placed_beside_it(unled: Cluster, tmp_path: Path) -> None:
    """As on a machine that comes from another cluster."""
    machine = await unled.machine("g1", gpus=2)
    unled.strangers.add("r-other-0")
    await unled.bus.view("desired", Desired).put("g1", desired(1, shard("r-other-0"), machine_id="g1"))
    await unled.happened(ShardReady)
    async with scheduler(unled.server, tmp_path):
        await unled.define(model_spec("m", 1, gpu_profile()))
        await unled.serves("m")
    gone = unled.events(ShardStopped, shard_id="r-other-0")[0]
    assert gone.at <= unled.placed("m")[0].at
    assert "r-other-0" not in machine.engines


async def test_engines_stopped_behind_the_agents_back_are_no_fault_of_the_model(cluster: Cluster) -> None:
    machine = await cluster.machine("c1")
    await cluster.define(model_spec("m", 1, cpu_profile(memory_mb=100)))
    [old] = await cluster.serves("m")
    await machine.stop()
    await stop_all(machine.settings)
    await machine.start()
    await cluster.happened(ReplicaStopped, replica_id=old.replica_id)
    await cluster.serves("m")
    assert not cluster.events(ReplicaFailed)


@pytest.mark.parametrize(
    "fault", ["gpu_lost", *(pytest.param(one, marks=pytest.mark.slow) for one in ("xid", "remap_failed"))]
)
async def test_a_sick_card_is_left_for_a_sound_one(cluster: Cluster, fault: str) -> None:
    machine = await cluster.machine("g1", gpus=2)
    await cluster.define(model_spec("m", 1, gpu_profile()))
    [old] = await cluster.serves("m")
    [device] = cluster.placed("m")[0].shards[0].devices
    begun = len(cluster.served["m"])
    machine.happens(fault, gpu=int(device.rpartition("-")[2]))
    draining = await cluster.happened(ReplicaDraining, replica_id=old.replica_id)
    assert "of g1 is" in draining.reason
    await cluster.happened(ReplicaStopped, replica_id=old.replica_id)
    [new] = await cluster.serves("m")
    assert cluster.events(ReplicaReady, replica_id=new.replica_id)[0].at <= draining.at
    assert 0 not in cluster.served["m"][begun:]
    [moved] = cluster.placed("m")[1].shards[0].devices
    assert moved != device


@pytest.mark.slow
async def test_a_card_that_is_well_again_is_used_again(cluster: Cluster) -> None:
    machine = await cluster.machine("g1", gpus=1)
    machine.happens("gpu_lost", gpu=0)
    await eventually(lambda: any(gpu.problems for one in cluster.events(MachineRegistered) for gpu in one.gpus), WAIT_S)
    await cluster.define(model_spec("m", 1, gpu_profile()))
    await cluster.happened(ModelUnplaced)
    machine.happens("gpu_back", gpu=0)
    await cluster.serves("m")
