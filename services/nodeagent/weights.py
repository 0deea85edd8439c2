"""A shard's weights on their way to this machine."""

from __future__ import annotations

import asyncio

from libs.events.views import ShardWanted, WeightsWanted

from .adapters.store import Rejected
from .fetching import Fetched
from .node import Failure, Node, Progress


async def brought(node: Node, wanted: ShardWanted, weights: WeightsWanted) -> Fetched:
    """The weights on this machine, every file right. Raises Failure, also when nothing of them came for too long."""
    progress = Progress(wanted.startup_timeout_s)
    bringing = asyncio.create_task(node.fetching.ensure(weights, progress.advance, wanted.allow_pickle))
    try:
        while not bringing.done():
            await asyncio.wait([bringing], timeout=0.5)
            silent = progress.over()
            if silent is not None:
                at = node.fetching.progress().get(f"{weights.name}@{weights.version}", "")
                raise Failure("fetching", f"its weights did not come: nothing for {silent:.0f} s, at {at}")
        return bringing.result()
    except Rejected as error:
        raise Failure("fetching", str(error)) from None
    finally:
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)
