"""Which GPUs of a machine a shard gets: joined by NVLink, whole groups left whole, short links last."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from libs.events.machine import Gpu, MachineRegistered
from libs.fit.health import slow


class Chosen(msgspec.Struct, frozen=True):
    """GPUs for a shard."""

    devices: tuple[str, ...]
    """UUIDs, by index."""
    scores: dict[str, float]
    """Score parts of this choice, 0 to 1; what the machine's hardware leaves no choice in is left out."""


class Lacking(msgspec.Struct, frozen=True):
    """There are enough free GPUs, and no set of them will do."""

    check: str
    sentence: str


def compute_capability(text: str | None) -> tuple[int, ...] | None:
    """``"8.9"`` as a number to compare; None if it says nothing."""
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else None


def short_link(gpu: Gpu) -> bool:
    """Its PCIe link carries less than card and slot could."""
    link = gpu.pcie
    if link is None:
        return False
    narrow = link.lanes is not None and link.card_lanes is not None and link.lanes < link.card_lanes
    slow = link.generation is not None and link.card_generation is not None and link.generation < link.card_generation
    return narrow or slow


def nvlink_groups(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """GPUs that reach each other over NVLink, directly or through others. One that reaches none stands alone."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    groups: list[list[Gpu]] = []
    seen: set[str] = set()
    for gpu in gpus:
        if gpu.uuid in seen:
            continue
        seen.add(gpu.uuid)
        group, todo = [gpu], [gpu]
        while todo:
            for peer in todo.pop().nvlink_peers:
                if peer in by_uuid and peer not in seen:
                    seen.add(peer)
                    group.append(by_uuid[peer])
                    todo.append(by_uuid[peer])
        groups.append(sorted(group, key=lambda g: g.index))
    return groups


def choose(
    facts: MachineRegistered, usable: Sequence[Gpu], count: int, gpu_class: str, nics: frozenset[str] = frozenset()
) -> Chosen | Lacking:
    """``count`` of the usable GPUs, which are at least so many; near these network cards, where there are any."""
    if usable[0].mig is not None:
        return _instance(facts, usable)

    def _rank(gpu: Gpu) -> tuple[bool, bool, float, int, int]:
        away = 1.0 - (reach(gpu, nics) or 0.0) if nics else 0.0
        return slow(gpu), short_link(gpu), away, gpu.numa_node if gpu.numa_node is not None else -1, gpu.index

    linked = any(gpu.nvlink_peers for gpu in facts.gpus if gpu.gpu_class == gpu_class)
    if not linked:
        best = sorted(usable, key=_rank)[:count]
        return Chosen(_uuids(best), _scores(best, None, nics))
    free = {gpu.uuid for gpu in usable}
    groups = [
        ([gpu for gpu in group if gpu.uuid in free], len(group))
        for group in nvlink_groups([gpu for gpu in facts.gpus if gpu.gpu_class == gpu_class])
    ]
    fitting = [group for group, _ in groups if len(group) >= count]
    if fitting:
        # The fullest group that will do: others stay whole for what needs more.
        group = min(fitting, key=lambda g: (len(g), g[0].index))
        best = sorted(group, key=_rank)[:count]
        return Chosen(_uuids(best), _scores(best, 1.0 - (len(group) - count) / max(1, len(facts.gpus)), nics))
    if max(size for _, size in groups) >= count:
        most = max(len(group) for group, _ in groups)
        return Lacking("nvlink", f"needs {count} GPUs joined by NVLink, the largest set with free ones has {most}")
    best = sorted(usable, key=_rank)[:count]
    return Chosen(_uuids(best), _scores(best, 0.0, nics))


def _instance(facts: MachineRegistered, usable: Sequence[Gpu]) -> Chosen:
    """One MIG instance, of the card that has fewest free ones: whole cards stay whole."""
    free: dict[str, int] = {}
    for gpu in usable:
        assert gpu.mig is not None
        free[gpu.mig.card_uuid] = free.get(gpu.mig.card_uuid, 0) + 1
    best = min(usable, key=lambda gpu: (slow(gpu), free[gpu.mig.card_uuid if gpu.mig else ""], gpu.index))
    assert best.mig is not None
    of_card = sum(gpu.mig is not None and gpu.mig.card_uuid == best.mig.card_uuid for gpu in facts.gpus)
    whole = round(1.0 - (free[best.mig.card_uuid] - 1) / max(1, of_card), 4)
    return Chosen((best.uuid,), {"sound": 0.0 if slow(best) else 1.0, "whole": whole})


NEAR = {"PIX": 1.0, "PXB": 0.8, "PHB": 0.6, "NODE": 0.4, "SYS": 0.2}


def reach(gpu: Gpu, nics: frozenset[str]) -> float | None:
    """How near a card is to the nearest of these network cards, 0 to 1; None: nobody measured."""
    distances = [NEAR.get(where, 0.0) for nic, where in gpu.nic_distances.items() if nic in nics]
    return max(distances, default=None)


def _uuids(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    return tuple(gpu.uuid for gpu in sorted(gpus, key=lambda g: g.index))


def _scores(gpus: Sequence[Gpu], whole: float | None, nics: frozenset[str]) -> dict[str, float]:
    scores = {"sound": round(sum(not slow(gpu) for gpu in gpus) / len(gpus), 4)}
    if whole is not None:
        scores["whole"] = round(whole, 4)
    if any(gpu.pcie is not None for gpu in gpus):
        scores["link"] = round(sum(not short_link(gpu) for gpu in gpus) / len(gpus), 4)
    if len(gpus) > 1 and any(gpu.numa_node is not None for gpu in gpus):
        scores["near"] = round(1.0 / len({gpu.numa_node for gpu in gpus}), 4)
    reaches = [distance for gpu in gpus if (distance := reach(gpu, nics)) is not None]
    if reaches:
        scores["adapter"] = round(sum(reaches) / len(reaches), 4)
    return scores
