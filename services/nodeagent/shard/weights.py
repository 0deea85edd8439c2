"""A shard's weights: on their way to this machine, or there already."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from libs.events.sources import (
    kept_as,
    on_machines,
    path_of,
    source_problem,
)
from libs.events.views import ShardWanted, WeightsWanted
from libs.tasks import end
from services.nodeagent.adapters.weights import local
from services.nodeagent.adapters.weights.store import Rejected
from services.nodeagent.core.engines import Lora

from .fetching import Fetched
from .node import Failure, Node, Progress


class _Config(msgspec.Struct):
    """What is read of PEFT's ``adapter_config.json``."""

    r: int


async def listed(node: Node, wanted: ShardWanted) -> tuple[Path | None, ShardWanted]:
    """A shard with the files of its weights, which of the library's are known already; and the folder they are in if
    they are on this machine (``file:``). Raises Failure."""
    weights = wanted.weights
    if weights is None or not weights.source:
        return None, wanted
    wrong = source_problem(weights.source)
    kept, named = kept_as(weights.source), f"{weights.name}@{weights.version}"
    if wrong is None and not on_machines(weights.source) and kept != named:
        wrong = f"{weights.source} is kept as {kept} and not as {named}"
    if wrong is not None:
        raise Failure("refused", wrong)
    try:
        # A server of files that is away holds on to whoever asks it.
        async with asyncio.timeout(wanted.startup_timeout_s):
            folder, with_files = await _listed(node, weights, wanted.allow_pickle)
    except Rejected as error:
        raise Failure("checking", str(error)) from None
    except TimeoutError:
        reason = f"nothing said which files {weights.source} has for {wanted.startup_timeout_s} s: is its server up?"
        raise Failure("checking", reason) from None
    return folder, msgspec.structs.replace(wanted, weights=with_files)


async def _listed(node: Node, weights: WeightsWanted, pickles_allowed: bool) -> tuple[Path | None, WeightsWanted]:
    if not on_machines(weights.source):
        return None, await node.fetching.listed(weights)
    folder, files = await asyncio.to_thread(local.look, Path(path_of(weights.source)), pickles_allowed)
    return folder, msgspec.structs.replace(weights, files=files)


async def loras(node: Node, wanted: ShardWanted) -> tuple[tuple[Lora, ...], int]:
    """The fine-tunings of a shard on this machine, and the bytes that had to come for them. Raises Failure."""
    tunings, fetched_bytes = [], 0
    for lora in wanted.loras:
        fetched = await brought(node, wanted, lora.weights)
        fetched_bytes += fetched.fetched_bytes
        try:
            config = msgspec.json.decode((fetched.folder / "adapter_config.json").read_bytes(), type=_Config)
        except (OSError, msgspec.DecodeError) as error:
            raise Failure(
                "checking", f"the adapter {lora.name} has no adapter_config.json that says its rank: {error}"
            ) from None
        tunings.append(Lora(name=lora.name, folder=str(fetched.folder), rank=config.r))
    return tuple(tunings), fetched_bytes


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
        await end(bringing)
