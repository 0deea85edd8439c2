"""From a started engine to one that serves: healthy, on its own port, on its GPUs, and with a first token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from libs.events.views import ShardWanted
from services.nodeagent.adapters.engine import process as processes
from services.nodeagent.adapters.engine.client import EngineClient
from services.nodeagent.adapters.engine.http import Unreachable
from services.nodeagent.adapters.engine.output import Printed
from services.nodeagent.core.shard.record import EngineProcess

from . import gpu_memory
from .node import Failure, Node, Progress

_DIES_WITHIN_S = 0.2
"""After its first request failed, an engine that is dying has ended."""


async def until_serving(
    node: Node,
    wanted: ShardWanted,
    process: EngineProcess,
    client: EngineClient,
    used_before_mb: dict[str, int],
    rss_mb: Callable[[], int],
    raise_if_dead: Callable[[], None],
) -> dict[str, int]:
    """``used_before_mb``: what was used on its GPUs before it was started; empty when that is not known. ``rss_mb``:
    what its processes hold of main memory.

    Returns when it serves, with the memory it holds on each of its GPUs, MB. Raises Failure."""
    if wanted.rank > 0:
        # It has no door: its leader answers once every rank has joined.
        return await gpu_memory.until_held(
            node, wanted, process, used_before_mb, gpu_memory.RANK_SETTLES_S, raise_if_dead
        )
    mark = processes.mark_of(node.files.data_dir, wanted.shard_id)
    port = urlsplit(client.url).port or 0
    printed = Printed(node.files.output(wanted.shard_id), client.health_path)

    def signs() -> tuple[int, int]:
        # What moves while an engine loads: its output, and its memory in steps of 16 MB.
        return printed.moves(), rss_mb() // 16

    progress = Progress(wanted.startup_timeout_s)
    begun = time.monotonic()
    seen: tuple[int, int] | None = None
    while not (await client.healthy() and await asyncio.to_thread(processes.listens, process, mark, port)):
        raise_if_dead()
        if signs() != seen:
            seen = signs()
            progress.advance()
        silent = progress.over()
        if silent is not None:
            raise Failure("loading", f"the engine was not ready {silent:.0f} s after its last sign of progress")
        await asyncio.sleep(0.05 if time.monotonic() - begun < 2 else 0.25)
    held = await gpu_memory.until_held(node, wanted, process, used_before_mb, 0.0, raise_if_dead)
    try:
        trouble = await client.generates(wanted.served_name) or await _loras_trouble(wanted, client)
    except Unreachable as error:
        await asyncio.sleep(_DIES_WITHIN_S)
        raise_if_dead()
        raise Failure("loading", f"its first token failed: {error}") from None
    if trouble is not None:
        raise Failure("loading", trouble)
    return held


async def _loras_trouble(wanted: ShardWanted, client: EngineClient) -> str | None:
    """A sentence unless each fine-tuning is listed and has generated a token. Raises Unreachable."""
    if not wanted.loras:
        return None
    listed = await client.listed()
    for lora in wanted.loras:
        if lora.name not in listed:
            return f"the adapter {lora.name} was not loaded: the engine lists {', '.join(sorted(listed)) or 'nothing'}"
        trouble = await client.generates(lora.name)
        if trouble is not None:
            return f"the adapter {lora.name}: {trouble}"
    return None
