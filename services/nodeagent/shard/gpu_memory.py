"""An engine's memory on the GPUs it was given: there when it is to be ready, gone when it has stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from libs.events.views import ShardWanted
from services.nodeagent.adapters.engine import process as processes
from services.nodeagent.core.shard.record import EngineProcess

from .node import Failure, Node

log = logging.getLogger(__name__)

_HOLDS_AFTER_S = 15.0
"""An engine that answers has loaded its model: its memory must be where it computes by now."""

_GROWS_MB = 100
"""A context alone takes more."""

RANK_SETTLES_S = 5.0
"""A rank that cannot join its leader ends within this."""

_GIVEN_BACK_S = 10.0
"""The driver takes back the memory of a process that ended within moments, unless it hangs."""

_LOOK_S = 0.25


async def until_held(
    node: Node,
    wanted: ShardWanted,
    process: EngineProcess,
    used_before_mb: dict[str, int],
    at_least_s: float,
    raise_if_dead: Callable[[], None],
) -> dict[str, int]:
    """Wait until the engine or a descendant holds memory on each of its GPUs, as far as these say who does; how much
    it holds on each, MB.

    An engine that found no GPU computes on the CPU without a word. Raises Failure.
    """
    mark = processes.mark_of(node.files.data_dir, wanted.shard_id)
    begun = time.monotonic()
    while True:
        raise_if_dead()
        waited = time.monotonic() - begun
        held: dict[str, int] = {}
        without = []
        if wanted.devices and (holders := node.holders()):
            ours = {member.pid for member in await asyncio.to_thread(processes.members, process, mark)}
            for uuid in wanted.devices:
                if uuid in holders and not ours & holders[uuid].keys():
                    # In a container the driver may name processes by numbers that mean nothing here: then what is
                    # used must have grown.
                    grown = node.hardware.gpu_used_mb().get(uuid, 0) - used_before_mb.get(uuid, 0)
                    if uuid in used_before_mb and grown < _GROWS_MB:
                        without.append(uuid)
                elif uuid in holders:
                    held[uuid] = sum(holders[uuid][pid] or 0 for pid in ours & holders[uuid].keys())
        if not without and waited >= at_least_s:
            return held
        if without and waited > _HOLDS_AFTER_S:
            raise Failure(
                "loading",
                f"the engine holds no memory on GPU {', '.join(without)} {waited:.0f} s after it first answered: "
                "it computes on the CPU",
            )
        await asyncio.sleep(_LOOK_S)


async def until_given_back(node: Node, wanted: ShardWanted, pids: frozenset[int]) -> None:
    """Wait until the driver shows none of the processes ``pids``, which have ended, on the shard's GPUs."""
    begun = time.monotonic()
    while any(pids & node.holders().get(uuid, {}).keys() for uuid in wanted.devices):
        if time.monotonic() - begun > _GIVEN_BACK_S:
            log.error("shard %s is gone and the driver still shows its memory on its GPU", wanted.shard_id)
            return
        await asyncio.sleep(_LOOK_S)
