"""Machines for a replica that spans several: an NVLink domain first, else one fabric; never two, never none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from services.scheduler.core.state.fabrics import Fabrics

LEAST = 0.005
"""Of a difference that decides anything."""
NAMED = 4
"""Machines of one replica that a sentence names."""
CABLE = 2.0
"""What a cable that trained short costs: a replica is as fast as its slowest member."""


class Gang(msgspec.Struct, frozen=True):
    """Machines that compute one replica together."""

    machines: tuple[str, ...]
    """The leading one first."""
    nics: dict[str, tuple[str, ...]]
    """Machine id to the network cards that lead to the fabric."""
    scores: dict[str, dict[str, float]]
    where: str
    """``on the fabric ib-a (sm:0x…)``"""
    domain: str | None = None
    fabric: str | None = None
    before: str = ""
    """Which others would have done, and why these come first: the rest of a sentence."""


_Ordered = tuple[tuple[bool, float, str], Gang]


def best_gang(
    fabrics: Fabrics, totals: Mapping[str, float], leaves: Mapping[str, str], nodes: int
) -> Gang | dict[str, dict[str, str]]:
    """The best ``nodes`` of the machines that can each take a part, or why each of them cannot do it with others.

    ``totals``: machine id to its score; ``leaves``: to the switch it hangs on, empty if nobody said.
    """
    domains: dict[str, list[str]] = {}
    networks: dict[str, list[str]] = {}
    for machine_id in sorted(totals):
        member = fabrics.members[machine_id]
        if member.domain is not None:
            domains.setdefault(member.domain, []).append(machine_id)
        for name in member.nics:
            networks.setdefault(name, []).append(machine_id)
    ordered = [
        *(_in_domain(name, members, totals, leaves, nodes) for name, members in domains.items()),
        *(_on_fabric(fabrics, name, members, totals, leaves, nodes) for name, members in networks.items()),
    ]
    gangs = [gang for gang in ordered if gang is not None]
    if gangs:
        best, *others = sorted(gangs, key=lambda pair: pair[0])
        return msgspec.structs.replace(best[1], before=_before(best, others[0])) if others else best[1]
    return {m: {"fabric": _too_few(fabrics, m, domains, networks, nodes)} for m in totals}


def _before(best: _Ordered, second: _Ordered) -> str:
    (fabric, worth, _), (other_fabric, other_worth, _) = best[0], second[0]
    if fabric != other_fabric and set(best[1].machines) == set(second[1].machines):
        return ", which comes before the fabric that they share as well"
    if fabric != other_fabric:
        why = "NVLink comes before a fabric"
    elif other_worth - worth >= LEAST:
        why = f"they score {-worth:.2f} together, those {-other_worth:.2f}"
    else:
        return f", as good as {', '.join(second[1].machines[:NAMED])} {second[1].where} and first by name"
    return f", before {', '.join(second[1].machines[:NAMED])} {second[1].where}: {why}"


def _in_domain(
    name: str, members: Sequence[str], totals: Mapping[str, float], leaves: Mapping[str, str], nodes: int
) -> _Ordered | None:
    if len(members) < nodes:
        return None
    chosen = _pick(members, totals, leaves, nodes)
    gang = Gang(chosen, {}, {m: {} for m in chosen}, f"in the NVLink domain {name}", domain=name)
    return (False, -sum(totals[m] for m in chosen), name), gang


def _on_fabric(
    fabrics: Fabrics,
    name: str,
    members: Sequence[str],
    totals: Mapping[str, float],
    leaves: Mapping[str, str],
    nodes: int,
) -> _Ordered | None:
    if len(members) < nodes:
        return None
    full = fabrics.largest.get(name)
    cables = {m: fabrics.members[m].rate_gbps.get(name, full or 1.0) / full if full else 1.0 for m in members}
    worth = {m: totals[m] - CABLE * (1.0 - cables[m]) for m in members}
    chosen = _pick(members, worth, leaves, nodes)
    gang = Gang(
        chosen,
        {m: fabrics.members[m].nics[name] for m in chosen},
        {m: {"cable": round(cables[m], 4)} for m in chosen},
        f"on the fabric {fabrics.called(name)}",
        fabric=name,
    )
    return (True, -sum(worth[m] for m in chosen), name), gang


def _pick(members: Sequence[str], worth: Mapping[str, float], leaves: Mapping[str, str], nodes: int) -> tuple[str, ...]:
    """On one leaf switch if one has enough of them, else on as few as will do."""
    order = sorted(members, key=lambda m: (-worth[m], m))
    sizes = Counter(leaves[m] for m in members if leaves[m])
    whole = [leaf for leaf, size in sizes.items() if size >= nodes]
    if whole:
        best = min(
            ([m for m in order if leaves[m] == leaf][:nodes] for leaf in sorted(whole)),
            key=lambda chosen: -sum(worth[m] for m in chosen),
        )
        return tuple(best)
    if sizes:
        order.sort(key=lambda m: (-sizes[leaves[m]], leaves[m], -worth[m], m))
    return tuple(order[:nodes])


def _too_few(
    fabrics: Fabrics, machine_id: str, domains: Mapping[str, list[str]], networks: Mapping[str, list[str]], nodes: int
) -> str:
    member = fabrics.members[machine_id]
    reach = [(len(networks[name]), f"the fabric {fabrics.called(name)}") for name in member.nics]
    if member.domain is not None:
        reach.append((len(domains[member.domain]), f"the NVLink domain {member.domain}"))
    most, where = max(reach, default=(1, "no fabric"))
    return f"{nodes} machines are needed on one fabric, {most} that could take a part are on {where}"
