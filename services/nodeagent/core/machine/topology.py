"""A map of an InfiniBand fabric, from what ``ibnetdiscover`` prints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from libs.events.questions import (
    FabricAdapter,
    FabricCable,
    FabricMap,
    FabricSwitch,
)

LANE_GBPS = {"SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
             "XDR": 200.0}  # fmt: skip

_NODE = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"(?P<id>[SHR]-[0-9a-f]+)"\s+#\s*"(?P<name>[^"]*)"')
_CABLE = re.compile(r'^\[(?P<port>\d+)\](?:\([0-9a-f]+\))?(?:\[ext \d+\])?\s+"(?P<peer>[SHR]-[0-9a-f]+)"'
                    r"\[(?P<peer_port>\d+)\].*?(?P<width>\d+)x(?P<speed>[A-Z]+\d*)\s*$")  # fmt: skip

End = tuple[str, int]
"""A node's id and one of its ports."""

_NOT_A_HOST = "Aggregation Node"
"""An adapter inside a switch, for reductions in the network."""


def rate(width: str, speed: str) -> float | None:
    """Gb/s of ``4x`` ``NDR``."""
    lane = LANE_GBPS.get(speed)
    return int(width) * lane if lane is not None else None


def read(text: str) -> FabricMap:
    """Switches with their tier, adapters with the leaf and the rail they are on, and every cable that is slower than
    the others of its kind."""
    names: dict[str, str] = {}
    cables: dict[frozenset[End], tuple[str, float | None]] = {}
    node = ""
    for line in text.splitlines():
        if match := _NODE.match(line):
            node = match["id"]
            names[node] = match["name"]
        elif node and (match := _CABLE.match(line)):
            ends = frozenset(((node, int(match["port"])), (match["peer"], int(match["peer_port"]))))
            cables[ends] = f"{match['width']}x{match['speed']}", rate(match["width"], match["speed"])
    hosts = {node_id for node_id, name in names.items() if node_id.startswith("H-") and _NOT_A_HOST not in name}
    inside = {node_id for node_id in names if node_id.startswith("H-")} - hosts
    cabled: list[tuple[End, End, str, float | None]] = []
    for ends, (label, gbps) in cables.items():
        if len(ends) == 2 and not any(end[0] in inside for end in ends):
            first, second = sorted(ends)
            cabled.append((first, second, label, gbps))
    tiers = _tiers(names, hosts, [(first[0], second[0]) for first, second, _, _ in cabled])
    usual = _usual((tiers.get(first[0], 0), tiers.get(second[0], 0), gbps) for first, second, _, gbps in cabled)
    nics: list[FabricAdapter] = []
    slow: list[FabricCable] = []
    for first, second, label, gbps in cabled:
        kind = tuple(sorted((tiers.get(first[0], 0), tiers.get(second[0], 0))))
        expected = usual.get(kind)
        if gbps is not None and expected is not None and gbps < expected:
            slow.append(
                FabricCable(
                    one=f"{names[first[0]]} port {first[1]}",
                    other=f"{names[second[0]]} port {second[1]}",
                    link=label,
                    rate_gbps=gbps,
                    expected_gbps=expected,
                )
            )
        for end, peer in ((first, second), (second, first)):
            if end[0] in hosts and peer[0] in names:
                machine, nic = _split(names[end[0]])
                nics.append(
                    FabricAdapter(
                        guid=end[0].partition("-")[2],
                        machine=machine,
                        nic=nic,
                        leaf=names[peer[0]],
                        rate_gbps=gbps,
                    )
                )
    switches = [
        FabricSwitch(guid=node_id.partition("-")[2], name=names[node_id], tier=_TIERS[min(tiers[node_id], 3)])
        for node_id in names
        if node_id.startswith("S-") and node_id in tiers
    ]
    return FabricMap(
        switches=tuple(sorted(switches, key=lambda switch: (switch.tier, switch.name))),
        nics=tuple(sorted(nics, key=lambda nic: (nic.machine, nic.nic))),
        slow_cables=tuple(sorted(slow, key=lambda cable: (cable.one, cable.other))),
        cables=len(cabled),
        rails=_rails(nics),
    )


_TIERS = {1: "leaf", 2: "spine", 3: "core"}


def _tiers(names: dict[str, str], hosts: set[str], links: list[tuple[str, str]]) -> dict[str, int]:
    """Hosts are 0; a switch is one more than the nearest of its neighbours."""
    beside: dict[str, set[str]] = {}
    for node, peer_node in links:
        beside.setdefault(node, set()).add(peer_node)
        beside.setdefault(peer_node, set()).add(node)
    tiers = dict.fromkeys(hosts, 0)
    edge, tier = hosts, 1
    while edge:
        edge = {peer for node in edge for peer in beside.get(node, ()) if peer not in tiers and peer.startswith("S-")}
        tiers |= dict.fromkeys(edge, tier)
        tier += 1
    return tiers


def _usual(links: Iterable[tuple[int, int, float | None]]) -> dict[tuple[int, ...], float]:
    """The rate most cables between two tiers have; of two equally common ones the higher."""
    counts: dict[tuple[int, ...], Counter[float]] = {}
    for tier, other_tier, gbps in links:
        if gbps is not None:
            counts.setdefault(tuple(sorted((tier, other_tier))), Counter())[gbps] += 1
    return {kind: max(rates, key=lambda gbps: (rates[gbps], gbps)) for kind, rates in counts.items()}


def _split(name: str) -> tuple[str, str]:
    """``gpu-07 mlx5_0`` or ``gpu-07 HCA-1`` is a machine and its adapter; anything else is a machine."""
    machine, _, nic = name.strip().rpartition(" ")
    return (machine, nic) if machine else (name.strip(), "")


def _rails(nics: list[FabricAdapter]) -> dict[str, tuple[str, ...]]:
    """Adapter name to the leaves its ports are on, over all machines: one leaf each is a rail-aligned fabric."""
    leaves_of: dict[str, set[str]] = {}
    for port_of in nics:
        if port_of.nic:
            leaves_of.setdefault(port_of.nic, set()).add(port_of.leaf)
    return {nic: tuple(sorted(leaves)) for nic, leaves in sorted(leaves_of.items())}
