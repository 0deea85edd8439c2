"""Whether a shard still fits this machine at the moment it is to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from libs.events.machine import Gpu
from libs.events.views import ShardWanted


def outstanding_mb(holdings: Iterable[tuple[int, int]]) -> int:
    """Memory that running shards were promised and have not taken yet.

    ``holdings``: of each shard what it reserved and what it holds, MB. What one holds beyond its reservation
    is gone from the free memory already and gives nothing back here.
    """
    return sum(max(0, reserved - held) for reserved, held in holdings)


FOREIGN_MB = 200
"""A GPU on which others hold more than this is taken; drivers and display servers hold less."""


def refusal(
    wanted: ShardWanted,
    *,
    available_mb: int,
    promised_mb: int,
    gpus: Iterable[Gpu],
    foreign: Mapping[str, Mapping[int, int | None]],
) -> str | None:
    """Why ``wanted`` cannot start here, or None.

    ``available_mb`` is what the kernel could give now, ``promised_mb`` the part of it others will still take;
    ``foreign``: GPU UUID to the processes that are no engines of ours and what they hold there, MB.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    for device in wanted.devices:
        if device not in known:
            return f"GPU {device} is not on this machine (it has {', '.join(sorted(known)) or 'none'})"
        held = foreign.get(device, {})
        held_mb = sum(mb or 0 for mb in held.values())
        if held_mb > FOREIGN_MB:
            who = ", ".join(f"process {pid}" for pid in sorted(held)[:4])
            return f"{held_mb} MB of GPU {device} are held by {who}, which is none of the engines here"
    free = available_mb - promised_mb
    if wanted.memory_mb > free:
        return (
            f"it needs {wanted.memory_mb} MB of memory and {max(free, 0)} MB are free here "
            f"({available_mb} MB available, {promised_mb} MB of that promised to shards that are still growing)"
        )
    return None
