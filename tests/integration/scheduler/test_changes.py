"""Definitions, numbers and administrators change what should run: real agents and engines follow, and no GPU is had
twice on the way."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from libs.events.commands import (
    CordonNode,
    DrainNode,
    RemoveModel,
    RestartModel,
    ScaleModel,
    StartModel,
    StartSystem,
    StopModel,
    StopSystem,
    UncordonNode,
)
from libs.events.model import ModelSpec, ModelUnplaced, Scaling
from libs.events.replica import ReplicaDraining, ReplicaReady, ReplicaStopped, ReplicaStopping
from libs.testing import eventually
from libs.testing.traffic import ask
from services.nodeagent.adapters.engine import http
from tests.unit.scheduler.harness import cpu_profile, gpu_profile, model_spec

from .cluster import WAIT_S, Cluster


def changed(spec: ModelSpec, **fields: Any) -> ModelSpec:
    """The same model run otherwise."""
    return msgspec.structs.replace(spec, context_length=spec.context_length // 2, **fields)


async def test_up_and_down(cluster: Cluster) -> None:
    for name in ("g1", "g2"):
        await cluster.machine(name, gpus=2)
    await cluster.define(model_spec("m", 1, gpu_profile()))
    [first] = await cluster.serves("m")
    await cluster.command(ScaleModel(model="m", scaling=Scaling(min=3)))
    await cluster.serves("m", 3, on={"g1", "g2"})
    await cluster.command(ScaleModel(model="m", scaling=Scaling(min=1)))
    assert await cluster.serves("m") == [first], "what came last goes first"
    await cluster.command(RemoveModel(model="m"))
    await eventually(lambda: not any(m.engines for m in cluster.machines.values()), WAIT_S)


async def test_a_changed_definition_replaces_each_after_its_successor_serves(cluster: Cluster) -> None:
    machine = await cluster.machine("g1", gpus=3)
    spec = model_spec("m", 2, gpu_profile())
    await cluster.define(spec)
    old = await cluster.serves("m", 2)
    begun = len(cluster.served["m"])
    await cluster.define(changed(spec))
    await eventually(lambda: len(cluster.events(ReplicaStopped)) == 2, WAIT_S)
    new = await cluster.serves("m", 2)
    assert not {one.replica_id for one in old} & {one.replica_id for one in new}
    assert min(cluster.served["m"][begun:]) == 2, "it served all the time with as many as are wanted"
    assert max(cluster.served["m"][begun:]) <= 3, "one more than wanted, not twice as many"
    assert len(machine.engines) == 2


async def test_two_models_that_change_at_once_do_not_both_take_the_last_room(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=3)
    specs = [model_spec(name, 1, gpu_profile()) for name in ("a", "b")]
    await cluster.define(*specs)
    for name in ("a", "b"):
        await cluster.serves(name)
    await cluster.define(*map(changed, specs))
    await eventually(lambda: len(cluster.events(ReplicaStopped)) == 2, WAIT_S)
    for name in ("a", "b"):
        await cluster.serves(name)
        assert len(cluster.placed(name)) == 2
        served = cluster.served[name]
        assert 0 not in served[served.index(1) :], f"{name} served all the time"


async def test_without_room_the_old_one_makes_room_for_the_new_one(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=2)
    spec = model_spec("m", 2, gpu_profile())
    await cluster.define(spec)
    await cluster.serves("m", 2)
    begun = len(cluster.served["m"])
    await cluster.define(changed(spec))
    await eventually(lambda: len(cluster.events(ReplicaStopped)) == 2, WAIT_S)
    await cluster.serves("m", 2)
    assert min(cluster.served["m"][begun:]) == 1, "one at a time"
    stopped = [one.reason for one in cluster.events(ReplicaDraining)]
    assert all("its successor needs its room" in reason for reason in stopped), stopped


async def test_a_restart_by_hand_without_room_waits_until_it_is_done_in_place(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=2)
    await cluster.define(model_spec("m", 2, gpu_profile()))
    before = await cluster.serves("m", 2)
    await cluster.command(RestartModel(model="m"))
    said = await cluster.happened(ModelUnplaced)
    assert "a restart in place stops each first" in said.explanation.summary
    assert cluster.endpoints("m") == before
    await cluster.command(RestartModel(model="m", in_place=True))
    await eventually(lambda: len(cluster.events(ReplicaStopped)) == 2, WAIT_S)
    await cluster.serves("m", 2)
    assert min(cluster.served["m"][2:]) == 1, "one at a time"
    cards = [one.shards[0].devices for one in cluster.placed("m")]
    assert sorted(cards[:2]) == sorted(cards[2:])


async def test_a_drained_machine_is_emptied_when_others_serve_and_its_answers_are_whole(cluster: Cluster) -> None:
    for name in ("g1", "g2"):
        await cluster.machine(name, gpus=1)
    await cluster.define(model_spec("m", 1, gpu_profile(args=("--tok-s", "50"))))
    [old] = await cluster.serves("m")
    begun = len(cluster.served["m"])
    # A client in the middle of an answer of two seconds.
    answering = asyncio.create_task(ask(f"{old.url}/v1", "none", "m", "tell me", 100))
    await cluster.command(DrainNode(machine_id=old.machine_id, reason="a new fan"))
    other = ({"g1", "g2"} - {old.machine_id}).pop()
    [new] = await cluster.serves("m", on={other})
    stopped = await cluster.happened(ReplicaStopped, replica_id=old.replica_id)
    answer = await answering
    assert answer.ok, answer.error
    assert 0 not in cluster.served["m"][begun:]
    draining = cluster.events(ReplicaDraining, replica_id=old.replica_id)[0]
    assert "a new fan" in draining.reason
    ready = cluster.events(ReplicaReady, replica_id=new.replica_id)[0]
    assert ready.at <= draining.at
    assert (stopped.at - draining.at).total_seconds() >= 0.5, "the answer was waited for"
    assert not cluster.machines[old.machine_id].engines

    await cluster.command(ScaleModel(model="m", scaling=Scaling(min=2)))
    await cluster.happened(ModelUnplaced)
    await cluster.command(UncordonNode(machine_id=old.machine_id))
    await cluster.serves("m", 2, on={"g1", "g2"})


async def test_an_answer_that_takes_longer_than_a_drain_may_is_cut_off(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.scheduler.core.reconciler.lifecycle.DRAIN_GRACE", timedelta(seconds=1))
    machine = await cluster.machine("g1", gpus=1)
    await cluster.define(model_spec("m", 1, gpu_profile(args=("--tok-s", "1"))))
    [old] = await cluster.serves("m")
    answering = asyncio.create_task(ask(f"{old.url}/v1", "none", "m", "tell me", 1000))
    await eventually(lambda: engine_runs(old.url), WAIT_S)
    await cluster.command(RemoveModel(model="m"))
    stopping = await cluster.happened(ReplicaStopping)
    assert "the grace of 1 s for requests in flight is over" in stopping.reason
    await cluster.happened(ReplicaStopped)
    assert not machine.engines
    assert not (await answering).ok


async def engine_runs(url: str) -> bool:
    """Whether an engine works on an answer."""
    page = (await http.request("GET", f"{url}/metrics", headers={}, timeout_s=5)).body.decode()
    return re.search(r"^vllm:num_requests_running\S* [1-9]", page, re.MULTILINE) is not None


async def test_a_cordoned_machine_keeps_what_it_has_and_gets_nothing_new(cluster: Cluster) -> None:
    machine = await cluster.machine("g1", gpus=2)
    await cluster.define(model_spec("m", 1, gpu_profile()))
    [kept] = await cluster.serves("m")
    await cluster.command(CordonNode(machine_id="g1", reason="it hums"))
    await cluster.command(ScaleModel(model="m", scaling=Scaling(min=2)))
    said = await cluster.happened(ModelUnplaced)
    assert "node" in said.explanation.rejected
    assert cluster.endpoints("m") == [kept]
    machine.kill(f"{kept.replica_id}-0")
    await cluster.serves("m", 0)
    await cluster.command(UncordonNode(machine_id="g1"))
    await cluster.serves("m", 2)


async def test_stopping_and_starting_a_model_and_everything(cluster: Cluster) -> None:
    machines = [await cluster.machine("g1", gpus=1), await cluster.machine("c1")]
    await cluster.define(model_spec("x", 1, gpu_profile()), model_spec("y", 1, cpu_profile(memory_mb=100)))
    for name in ("x", "y"):
        await cluster.serves(name)
    await cluster.command(StopModel(model="x", reason="dear"))
    await cluster.serves("x", 0)
    assert (cluster.routes["x"].stopped, cluster.routes["y"].stopped) == ("model_stopped", None)
    await cluster.command(StopSystem(reason="night"))
    await eventually(lambda: not any(machine.engines for machine in machines), WAIT_S)
    assert (cluster.routes["y"].stopped, cluster.routes["y"].stopped_reason) == ("system_stopped", "night")
    await cluster.command(StartSystem())
    await cluster.serves("y")
    assert cluster.endpoints("x") == []
    await cluster.command(StartModel(model="x"))
    await cluster.serves("x")


async def test_a_higher_class_takes_the_least_of_a_lower_one_and_gives_it_back(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=2)
    await cluster.define(model_spec("low", 2, gpu_profile(), priority_class="low"))
    await cluster.serves("low", 2)
    await cluster.define(model_spec("high", 1, gpu_profile(), priority_class="high"))
    await cluster.serves("high")
    await cluster.serves("low", 1)
    [taken] = cluster.events(ReplicaDraining)
    assert "makes way for high, which is of the class high" in taken.reason
    lacking = await cluster.happened(ModelUnplaced, model="low")
    assert "gpus" in lacking.explanation.rejected
    await cluster.command(RemoveModel(model="high"))
    await cluster.serves("low", 2)


async def test_replicas_are_counted_for_each_profile(cluster: Cluster) -> None:
    await cluster.machine("g1", gpus=2)
    await cluster.machine("c1")
    profiles = (gpu_profile(replicas=1), cpu_profile(memory_mb=100, replicas=2), gpu_profile("spare"))
    spec = ModelSpec(name="m", profiles=profiles)
    await cluster.define(spec)
    await cluster.serves("m", 3)
    assert sorted(one.profile for one in cluster.placed("m")) == ["cpu", "cpu", "gpu"]
    fewer = (msgspec.structs.replace(profiles[0], replicas=2), msgspec.structs.replace(profiles[1], replicas=0))
    await cluster.define(msgspec.structs.replace(spec, profiles=fewer))
    await cluster.serves("m", 2, on={"g1"})
