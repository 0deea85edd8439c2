"""Whether a shard still fits this machine at the moment it is to start."""

from __future__ import annotations

from collections.abc import Iterable

from libs.events.machine import Gpu
from libs.events.views import ShardWanted


def outstanding_mb(holdings: Iterable[tuple[int, int]]) -> int:
    """Memory that running shards were promised and have not taken yet.

    ``holdings``: of each shard what it reserved and what it holds, MB. What one holds beyond its reservation
    is gone from the free memory already and gives nothing back here.
    """
    return sum(max(0, reserved - held) for reserved, held in holdings)


def refusal(wanted: ShardWanted, *, available_mb: int, promised_mb: int, gpus: Iterable[Gpu]) -> str | None:
    """Why ``wanted`` cannot start here, or None.

    ``available_mb`` is what the kernel could give now, ``promised_mb`` the part of it others will still take.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    for device in wanted.devices:
        if device not in known:
            return f"GPU {device} is not on this machine (it has {', '.join(sorted(known)) or 'none'})"
    free = available_mb - promised_mb
    if wanted.memory_mb > free:
        return (
            f"it needs {wanted.memory_mb} MB of memory and {max(free, 0)} MB are free here "
            f"({available_mb} MB available, {promised_mb} MB of that promised to shards that are still growing)"
        )
    return None
