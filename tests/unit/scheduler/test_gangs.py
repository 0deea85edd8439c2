"""Replicas over several machines: together on one fabric or in one NVLink domain, started and ended as one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from libs.events.model import ModelUnplaced
from libs.events.replica import ReplicaFailed, ReplicaPlaced
from services.scheduler.core.views.desired import wanted_on
from services.scheduler.core.views.routes import route

from .harness import (
    World,
    gangs_are_together,
    gpu_profile,
    index_follows_facts,
    model_spec,
    no_double_holding,
    port,
    really_free,
)


@pytest.fixture
def world() -> World:
    world = World()
    world.checks = [no_double_holding, index_follows_facts, really_free, gangs_are_together]
    return world


def spanning(nodes: int = 2, gpus: int = 8, **fields: Any) -> Any:
    return model_spec("big", 1, gpu_profile(gpus=gpus, nodes=nodes, startup_timeout_s=60), **fields)


def test_a_replica_over_two_machines_is_ready_when_both_are(world: World) -> None:
    for name in ("a", "b", "c"):
        world.machine(name, gpus=8, fabric="left" if name != "a" else "right")
    world.define(spanning())
    world.settle()
    [placed] = world.events(ReplicaPlaced)
    assert [s.machine_id for s in placed.shards] == ["b", "c"]
    assert placed.fabric == "sm:left"
    assert [s.shard_id for s in placed.shards] == [f"{placed.replica_id}-0", f"{placed.replica_id}-1"]
    assert "on the fabric sm:left" in placed.explanation.summary
    [endpoint] = route(world.state, world.model("big")).endpoints
    assert (endpoint.machine_id, endpoint.url) == ("b", "http://b:1")


def test_ranks_are_told_where_they_meet_and_over_what(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, gpus=8, fabric="left")
    world.define(spanning())
    world.settle()
    first, second = wanted_on(world.state, "a")[0], wanted_on(world.state, "b")[0]
    assert (first.rank, first.ranks, second.rank, second.ranks) == (0, 2, 1, 2)
    assert first.leader_address == second.leader_address == "a"
    assert first.leader_port == second.leader_port > 0
    assert first.nics == second.nics == ("mlx5_0",)
    assert (first.tp, first.pp) == (None, None)


def test_how_a_replica_is_divided_reaches_the_machines(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, gpus=8, fabric="left")
    world.define(model_spec("big", 1, gpu_profile(gpus=8, nodes=2, tp=4, pp=4), allow_pickle=True))
    world.settle()
    assert [(s.tp, s.pp, s.allow_pickle) for s in (*wanted_on(world.state, "a"), *wanted_on(world.state, "b"))] == [
        (4, 4, True)
    ] * 2


def test_one_name_over_two_fabrics_is_two_fabrics(world: World) -> None:
    world.machine("a", gpus=8, ports=(port("0x1", fabric="ib"),))
    world.machine("b", gpus=8, ports=(port("0x2", fabric="ib"),))
    world.define(spanning())
    world.settle()
    [unplaced] = world.events(ModelUnplaced)
    assert unplaced.explanation.rejected == {"fabric": 2}
    assert unplaced.explanation.candidates[0].rejected == (
        "2 machines are needed on one fabric, 1 that could take a part are on the fabric ib (sm:0x1)",
    )


def test_managers_listed_together_make_one_fabric(world: World) -> None:
    world.machine("a", gpus=8, ports=(port("0x2", managers=("0x2", "0x1")),))
    world.machine("b", gpus=8, ports=(port("0x2"),))
    world.define(spanning())
    world.settle()
    [placed] = world.events(ReplicaPlaced)
    assert placed.fabric == "sm:0x1"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "it has no port on a fabric"),
        ({"ports": (port(None, network_unknown="sminfo is not installed"),)},
         "nobody knows which fabric its port mlx5_0/1 is on: sminfo is not installed"),
        ({"ports": (port("x", state="down"),)}, "its port mlx5_0/1 is down"),
        ({"ports": (port("0x1", fabric="ib"), port("0x2", fabric="ib", nic="mlx5_1"))},
         "its ports call two fabrics 'ib', sm:0x1 and sm:0x2: give each a name of its own"),
    ],
)  # fmt: skip
def test_a_machine_without_a_known_fabric_computes_with_no_other(
    world: World, fields: dict[str, Any], why: str
) -> None:
    for name in ("a", "b"):
        world.machine(name, gpus=8, **fields)
    world.define(spanning())
    world.settle()
    [unplaced] = world.events(ModelUnplaced)
    assert unplaced.explanation.candidates[0].rejected == (f"can compute with no other machine: {why}",)


def test_an_nvlink_domain_comes_before_a_fabric(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, gpus=4, fabric="left")
    for name in ("y", "z"):
        world.machine(name, gpus=4, fabric="left", domain="rack-1/1")
    world.define(spanning(gpus=4))
    world.settle()
    [placed] = world.events(ReplicaPlaced)
    assert [s.machine_id for s in placed.shards] == ["y", "z"]
    assert placed.nvlink_domain == "rack-1/1"
    assert placed.fabric is None


def test_a_domain_counts_machines_whose_every_card_joined_and_whose_imex_runs(world: World) -> None:
    from libs.events.machine import Imex

    world.machine("a", gpus=4, domain="rack-1/1")
    world.machine("b", gpus=4, domain="rack-1/1", imex=Imex(state="failed"))
    world.define(spanning(gpus=4))
    world.settle()
    [unplaced] = world.events(ModelUnplaced)
    said = {c.machine_id: c.rejected[0] for c in unplaced.explanation.candidates}
    assert "IMEX, which shares it, is failed" in said["b"]
    assert "1 that could take a part are on the NVLink domain rack-1/1" in said["a"]


def test_one_leaf_switch_is_preferred_and_a_short_cable_comes_last(world: World) -> None:
    for name, leaf in (("a", "1"), ("b", "2"), ("c", "2")):
        world.machine(name, gpus=8, fabric="left", labels={"leaf": leaf})
    world.define(spanning())
    world.settle()
    assert [s.machine_id for s in world.events(ReplicaPlaced)[0].shards] == ["b", "c"]

    other = World()
    other.machine("a", gpus=8, ports=(port("left", rate_gbps=200.0),))
    for name in ("b", "c"):
        other.machine(name, gpus=8, fabric="left")
    other.define(spanning())
    other.settle()
    assert [s.machine_id for s in other.events(ReplicaPlaced)[0].shards] == ["b", "c"]


def test_the_death_of_one_rank_ends_the_whole_and_it_starts_anew_together(world: World) -> None:
    for name in ("a", "b"):
        world.machine(name, gpus=8, fabric="left")
    world.define(spanning())
    world.settle()
    [first] = world.replicas("big")
    world.machines["b"].crash(f"{first.replica_id}-1")
    world.step()
    assert world.machines["a"].shards == {} or world.replicas("big")[0].phase == "failed"
    world.settle(20)
    assert len(world.events(ReplicaFailed)) == 1
    [second] = world.replicas("big", "ready")
    assert second.replica_id != first.replica_id
    assert {shard_id for m in world.machines.values() for shard_id in m.shards} == set(second.shards)


def test_a_lost_machine_takes_its_gang_elsewhere(world: World) -> None:
    for name in ("a", "b", "c"):
        world.machine(name, gpus=8, fabric="left")
    world.define(spanning())
    world.settle()
    world.machines["b"].connected = False
    world.wait(40)
    assert world.replicas("big", "ready")[0].machines == ("a", "c")
    world.machines["b"].connected = True
    world.wait(40)
    assert len(world.replicas("big")) == 1
    assert world.machines["b"].shards == {}


def test_cards_near_the_network_adapters_are_taken_for_a_replica_over_machines(world: World) -> None:
    for name in "ab":
        machine = world.machine(name, gpus=4, fabric="0x1")
        gpus = tuple(
            msgspec.structs.replace(gpu, nic_distances={"mlx5_0": where, "mlx5_9": "PIX"})
            for gpu, where in zip(machine.registered.gpus, ("SYS", "SYS", "PIX", "PXB"), strict=True)
        )
        machine.registered = msgspec.structs.replace(machine.registered, gpus=gpus)
        world.append(machine.registered)
    world.define(model_spec("m", 1, gpu_profile(gpus=2, nodes=2)))
    world.settle()
    [replica] = world.replicas("m", "ready")
    assert [s.placement.devices for s in replica.shards.values()] == [
        ("a-gpu-2", "a-gpu-3"),
        ("b-gpu-2", "b-gpu-3"),
    ]
    assert replica.explanation.candidates[0].scores["adapter"] == 0.9
