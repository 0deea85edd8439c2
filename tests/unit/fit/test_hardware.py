"""Machines as their agents report them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cli import fleet
from libs.events.machine import FabricPort, Gpu, GpuSample, Imex, MachineRegistered, MachineSample, MigInstance
from libs.fit.hardware import capability, hosts_of, linked
from tests.unit.fit.models import FLEETS

MIB = 1 << 20
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def gpu(index: int, **fields: Any) -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name=fields.pop("name", "NVIDIA L40S"),
        gpu_class=fields.pop("gpu_class", "l40s-48g"),
        memory_total_mb=fields.pop("memory_total_mb", 46068),
        **fields,
    )


def machine(name: str = "a", **fields: Any) -> MachineRegistered:
    return MachineRegistered(
        at=NOW,
        machine_id=name,
        address="",
        agent_version="",
        sealing_key="",
        os="",
        arch="",
        cpu_count=8,
        memory_total_mb=1000,
        gpus_state=fields.pop("gpus_state", "verified"),
        **fields,
    )


def test_cards_and_what_is_held_of_them() -> None:
    sample = MachineSample(
        at=NOW, machine_id="a", memory_used_mb=400, gpus=(GpuSample(uuid="GPU-1", memory_used_mb=1000),)
    )

    (made,) = hosts_of(
        [machine(gpus=(gpu(0, compute_capability="8.9"), gpu(1)), memory_read_mb_s=20000)], {"a": sample}
    )

    assert [card.used_bytes for card in made.cards] == [0, 1000 * MIB]
    assert made.cards[0].capability == (8, 9)
    assert made.cards[0].usable_bytes == int(46068 * MIB * 0.9)
    assert made.cards[0].free_bytes == made.cards[0].usable_bytes
    assert (made.memory_bytes, made.free_memory_bytes) == (1000 * MIB, 600 * MIB)
    assert made.read_bytes_s == 20e9


def test_problems_keep_a_card_out() -> None:
    (made,) = hosts_of([machine(gpus=(gpu(0, problems=("it fell off the bus",)), gpu(1)))])

    assert [card.uuid for card in made.of_class("l40s-48g")] == ["GPU-1"]


@pytest.mark.parametrize(
    ("peers", "fields", "two"),
    [
        ((), {}, False),
        (("GPU-1",), {}, True),
        ((), {"simulated": True}, None),
        (("GPU-1",), {"simulated": True}, True),
        ((), {"gpus_state": "unverified"}, None),
    ],
)
def test_nvlink_is_there_or_not_or_not_known(peers: tuple[str, ...], fields: dict[str, Any], two: bool | None) -> None:
    back = ("GPU-0",) if peers else ()
    (made,) = hosts_of([machine(gpus=(gpu(0, nvlink_peers=peers), gpu(1, nvlink_peers=back)), **fields)])

    assert linked(made, made.cards, 2) is two
    assert linked(made, made.cards, 1) is True


def test_instances_know_their_share() -> None:
    mig = MigInstance(card_index=0, card_uuid="GPU-9", card_memory_total_mb=81920, device=0, profile="3g.40gb")
    (made,) = hosts_of(
        [
            machine(
                gpus=(
                    gpu(
                        1000,
                        name="NVIDIA A100-SXM4-80GB MIG 3g.40gb",
                        gpu_class="a100-80g-mig-3g.40gb",
                        memory_total_mb=40960,
                        mig=mig,
                    ),
                )
            )
        ]
    )

    assert made.cards[0].mig
    assert made.cards[0].share == 0.5
    assert made.cards[0].name == "NVIDIA A100-SXM4-80GB"


def test_ports_of_one_name_are_told_apart_by_what_was_measured() -> None:
    def port(nic: str, **fields: Any) -> FabricPort:
        return FabricPort(nic=nic, port=1, link_layer="InfiniBand", **{"state": "active", "fabric": "ib-a", **fields})

    (made,) = hosts_of(
        [
            machine(
                ports=(
                    port("mlx5_0", network="sm:1", rate_gbps=400),
                    port("mlx5_1", network="sm:2", rate_gbps=200),
                    port("mlx5_2", network="sm:3", state="down"),
                )
            )
        ]
    )

    (network,) = made.networks
    assert network.identities == {"sm:1", "sm:2"}
    assert network.rate_gbps == 200


def test_a_domain_needs_every_card_and_the_service() -> None:
    joined = (gpu(0, nvlink_domain="u/1"), gpu(1, nvlink_domain="u/1"))

    def domain(**fields: Any) -> str | None:
        return hosts_of([machine(**fields)])[0].domain

    assert domain(gpus=joined, imex=Imex(state="active")) == "u/1"
    assert domain(gpus=joined, imex=Imex(state="failed")) is None
    assert domain(gpus=joined) is None
    assert domain(gpus=(joined[0], gpu(1)), imex=Imex(state="active")) is None


def test_capabilities() -> None:
    assert [capability(text) for text in ("8.9", "12", None, "", "odd")] == [(8, 9), (12, 0), None, None, None]


@pytest.mark.parametrize("file", sorted(path.name for path in FLEETS.glob("*.yaml")))
def test_the_example_fleets_are_sound(file: str) -> None:
    machines = fleet.load(FLEETS / file).machines

    hosts = hosts_of(map(fleet.registered, machines), {one.id: fleet.sample(one) for one in machines})

    assert len(hosts) == len(machines) == len({one.id for one in hosts})


def test_the_example_rack_has_72_cards_in_one_domain() -> None:
    hosts = hosts_of(map(fleet.registered, fleet.load(FLEETS / "gb200-nvl72.yaml").machines))

    assert len(hosts) == 18
    assert sum(len(one.cards) for one in hosts) == 72
    assert len({one.domain for one in hosts}) == 1
    assert all(linked(one, one.cards, 4) for one in hosts)
