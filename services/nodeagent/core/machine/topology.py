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
    hosts = {one for one, name in names.items() if one.startswith("H-") and _NOT_A_HOST not in name}
    inside = {one for one in names if one.startswith("H-")} - hosts
    found: list[tuple[End, End, str, float | None]] = []
    for ends, (label, gbps) in cables.items():
        if len(ends) == 2 and not any(end[0] in inside for end in ends):
            one, other = sorted(ends)
            found.append((one, other, label, gbps))
    tiers = _tiers(names, hosts, [(one[0], other[0]) for one, other, _, _ in found])
    usual = _usual((tiers.get(one[0], 0), tiers.get(other[0], 0), gbps) for one, other, _, gbps in found)
    nics: list[FabricAdapter] = []
    slow: list[FabricCable] = []
    for one, other, label, gbps in found:
        kind = tuple(sorted((tiers.get(one[0], 0), tiers.get(other[0], 0))))
        expected = usual.get(kind)
        if gbps is not None and expected is not None and gbps < expected:
            slow.append(
                FabricCable(
                    one=f"{names[one[0]]} port {one[1]}",
                    other=f"{names[other[0]]} port {other[1]}",
                    link=label,
                    rate_gbps=gbps,
                    expected_gbps=expected,
                )
            )
        for end, peer in ((one, other), (other, one)):
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
        FabricSwitch(guid=one.partition("-")[2], name=names[one], tier=_TIERS[min(tiers[one], 3)])
        for one in names
        if one.startswith("S-") and one in tiers
    ]
    return FabricMap(
        switches=tuple(sorted(switches, key=lambda one: (one.tier, one.name))),
        nics=tuple(sorted(nics, key=lambda one: (one.machine, one.nic))),
        slow_cables=tuple(sorted(slow, key=lambda one: (one.one, one.other))),
        cables=len(found),
        rails=_rails(nics),
    )


_TIERS = {1: "leaf", 2: "spine", 3: "core"}


def _tiers(names: dict[str, str], hosts: set[str], links: list[tuple[str, str]]) -> dict[str, int]:
    """Hosts are 0; a switch is one more than the nearest of its neighbours."""
    beside: dict[str, set[str]] = {}
    for one, other in links:
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
    tiers = dict.fromkeys(hosts, 0)
    edge, tier = hosts, 1
    while edge:
        edge = {peer for one in edge for peer in beside.get(one, ()) if peer not in tiers and peer.startswith("S-")}
        tiers |= dict.fromkeys(edge, tier)
        tier += 1
    return tiers


def _usual(links: Iterable[tuple[int, int, float | None]]) -> dict[tuple[int, ...], float]:
    """The rate most cables between two tiers have; of two equally common ones the higher."""
    counts: dict[tuple[int, ...], Counter[float]] = {}
    for one, other, gbps in links:
        if gbps is not None:
            counts.setdefault(tuple(sorted((one, other))), Counter())[gbps] += 1
    return {kind: max(found, key=lambda gbps: (found[gbps], gbps)) for kind, found in counts.items()}


def _split(name: str) -> tuple[str, str]:
    """``gpu-07 mlx5_0`` or ``gpu-07 HCA-1`` is a machine and its adapter; anything else is a machine."""
    machine, _, nic = name.strip().rpartition(" ")
    return (machine, nic) if machine else (name.strip(), "")


def _rails(nics: list[FabricAdapter]) -> dict[str, tuple[str, ...]]:
    """Adapter name to the leaves its ports are on, over all machines: one leaf each is a rail-aligned fabric."""
    found: dict[str, set[str]] = {}
    for one in nics:
        if one.nic:
            found.setdefault(one.nic, set()).add(one.leaf)
    return {nic: tuple(sorted(leaves)) for nic, leaves in sorted(found.items())}
