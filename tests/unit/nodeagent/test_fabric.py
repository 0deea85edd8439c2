"""Ports, subnet managers and maps, from recorded outputs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libs.events.machine import Imex
from services.nodeagent.adapters.gpu.imex import imex
from services.nodeagent.adapters.host.fabric import (
    Ports,
    ScanFailed,
    distances,
    scan,
)
from services.nodeagent.core.machine import fabric, topology
from services.nodeagent.simulation.host_access import Said

from .machines import NAMES, described

RECORDED = Path(__file__).parents[2] / "data" / "fabric"
SM = "sm:fc6a1c0300bb0000"


def test_eight_rails_of_one_fabric() -> None:
    here = described("h100-sxm-8")
    ports, why = Ports(here, {"ib-a": tuple(f"mlx5_{n}" for n in range(8))}).look()
    assert (len(ports), why) == (8, "")
    assert {(port.network, port.fabric, port.state) for port in ports} == {(SM, "ib-a", "active")}
    first = ports[0]
    assert first.managers == ("fc6a1c0300bb0000", "fc6a1c0300bb0001")
    assert first.master_manager == "fc6a1c0300bb0001"
    assert (first.rate_gbps, first.physical_state, first.lid) == (400.0, "linkup", 16)
    assert first.port_guid == "fc6a1c0300aa0001"
    counters = Ports(here, {}).samples()[0].counters
    assert counters["port_xmit_wait"] == 771
    assert "port_xmit_data" not in counters, "what is not told is absent"


def test_each_card_knows_its_nearest_adapter() -> None:
    here = described("h100-sxm-8")
    near = distances(here, "0000:19:00.0", 0)
    assert next(iter(near.items())) == ("mlx5_0", "PIX")
    assert near["mlx5_1"] == "NODE"
    assert near["mlx5_7"] == "SYS"
    assert distances(here, None, 0) == {}


def test_a_fabric_keeps_its_name_when_another_manager_takes_over() -> None:
    here = described("h100-sxm-8")
    ports = Ports(here, {})
    assert ports.look()[0][0].network == SM
    taken_over = "sminfo: sm lid 2 sm guid 0xfc6a1c0300bb0000, activity count 9 priority 13 state 3 SMINFO_MASTER\n"
    for n in range(8):
        here.description.commands[f"sminfo -C mlx5_{n} -P 1"] = Said(out=taken_over)
        here.description.commands[f"saquery -C mlx5_{n} -P 1 SMIR"] = Said(hangs=True)
    ports._identities.clear()
    port = ports.look()[0][0]
    assert (port.network, port.master_manager) == (SM, "fc6a1c0300bb0000")


def test_two_fabrics_under_one_name_are_told_apart() -> None:
    here = described("h100-sxm-8")
    other = "sminfo: sm lid 1 sm guid 0x00a0b0c0d0e0f000, activity count 1 priority 0 state 3 SMINFO_MASTER\n"
    here.description.commands["sminfo -C mlx5_4 -P 1"] = Said(out=other)
    here.description.commands["saquery -C mlx5_4 -P 1 SMIR"] = Said(code=1)
    ports, _ = Ports(here, {"ib": tuple(f"mlx5_{n}" for n in range(8))}).look()
    assert {port.network for port in ports if port.fabric == "ib"} == {SM, "sm:00a0b0c0d0e0f000"}


def test_why_a_fabric_is_not_known_is_said() -> None:
    here = described("h100-sxm-8")
    here.description.commands.clear()
    port = Ports(here, {}).look()[0][0]
    assert port.network is None
    assert "install the package infiniband-diags" in port.network_unknown
    for path in list(here.description.files):
        if path.endswith("mlx5_0/ports/1/state"):
            here.description.files[path] = "2: INIT"
    assert "no subnet manager has set it up" in Ports(here, {}).look()[0][0].network_unknown
    assert Ports(described("no-gpu"), {}).look()[1].startswith("the kernel shows no InfiniBand")
    with pytest.raises(ScanFailed, match="install the package infiniband-diags"):
        scan(here, "mlx5_0", 1)


def test_roce_is_known_by_its_network() -> None:
    (port,), _ = Ports(described("l40s-pcie-2"), {}).look()
    assert (port.link_layer, port.network, port.gid_index) == ("Ethernet", "ip:10.20.0.0/16", 3)
    assert port.interface == "ens1f0np0"
    here = described("l40s-pcie-2")
    here.description.files["/proc/net/route"] = ""
    (port,), _ = Ports(here, {}).look()
    assert port.network is None
    assert "no route leads to the network of 10.20.1.5 over ens1f0np0" in port.network_unknown
    for path in list(here.description.files):
        if "gid_attrs/types" in path:
            del here.description.files[path]
    (port,), _ = Ports(here, {}).look()
    assert "no RoCE v2 address" in port.network_unknown


def test_the_service_of_a_domain() -> None:
    assert imex(described("gb200-nvl72-tray")) == Imex(state="active", channels=2)
    assert imex(described("gb200-not-joined")) == Imex(state="failed", channels=2)
    assert imex(described("v100")) is None


@pytest.mark.parametrize("name", NAMES)
def test_ports_of_every_machine_are_read_or_absent_with_the_reason(name: str) -> None:
    ports, why = Ports(described(name), {}).look()
    assert bool(ports) != bool(why)
    for port in ports:
        assert (port.network is None) == bool(port.network_unknown)


def test_words_rates_and_guids() -> None:
    assert fabric.word("4: ACTIVE") == "active"
    assert fabric.rate_gbps("10 Gb/sec (4X SDR)") == 10.0
    assert fabric.rate_gbps("") is None
    assert fabric.guid("0x100001") == "0000000000100001"
    assert fabric.guid("0000:0000:0000:0000") is None
    assert fabric.master("ibwarn: [1] mad_rpc: _do_madrpc failed") is None
    assert fabric.managers("garbage\nGUID....x") == ()


def test_a_fat_tree_of_two_rails() -> None:
    found = topology.read((RECORDED / "two-rails.txt").read_text())
    assert [(s.name, s.tier) for s in found.switches] == [
        ("leaf-1", "leaf"), ("leaf-2", "leaf"), ("spine-1", "spine"), ("spine-2", "spine"),
    ]  # fmt: skip
    assert found.rails == {"mlx5_0": ("leaf-1",), "mlx5_1": ("leaf-2",)}
    assert [(a.machine, a.nic, a.leaf) for a in found.nics][:2] == [
        ("gpu-01", "mlx5_0", "leaf-1"), ("gpu-01", "mlx5_1", "leaf-2"),
    ]  # fmt: skip
    slow = {(cable.one, cable.other): (cable.link, cable.rate_gbps, cable.expected_gbps) for cable in found.slow_cables}
    assert slow == {
        ("leaf-1 port 9", "spine-2 port 1"): ("2xNDR", 200.0, 400.0),
        ("gpu-03 mlx5_1 port 1", "leaf-2 port 3"): ("4xHDR", 200.0, 400.0),
    }
    assert found.cables == 10
    assert "Aggregation" not in str(msgspec.to_builtins(found.nics))


def test_a_map_of_nothing_is_empty() -> None:
    assert topology.read("").cables == 0
    assert topology.read("[1] broken\nSwitch\n").switches == ()
