"""Fine-tunings are fetched, loaded and proved with their model."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from libs.events.machine import MachineErrandEnded
from libs.events.node import Errand
from libs.events.shard import ShardFailed, ShardReady
from libs.events.views import ErrandWanted, LoraWanted
from libs.testing.files import FileServer, serving
from tests.unit.nodeagent.wanted import shard, weights

from .box import Box

NOT_LISTED = """
from services.nodeagent.engines.sim.engine import Sim
command = Sim.command
forgotten = ("--lora", "law")
Sim.command = lambda self, wanted, place: [part for part in command(self, wanted, place) if part not in forgotten]
"""


@pytest.fixture
def mirror() -> Iterator[FileServer]:
    with serving() as files:
        yield files


def lora(mirror: FileServer, config: bytes = b'{"r": 8}') -> LoraWanted:
    files = mirror.add(config, "adapter_config.json"), mirror.add(b"tensors", "adapter_model.safetensors")
    return LoraWanted(name="law", weights=weights(*files, mirrors=(mirror.url,), name="law-lora"))


async def test_an_adapter_is_there_when_its_model_is_ready(box: Box, mirror: FileServer) -> None:
    box.start_agent()
    wanted = shard(loras=(lora(mirror),))
    await box.want(wanted)
    ready = await box.next(ShardReady)

    def told(path: str) -> Any:
        with urllib.request.urlopen(f"{ready.url}{path}", timeout=5) as answer:
            return json.load(answer)

    assert [one["id"] for one in (await asyncio.to_thread(told, "/v1/models"))["data"]] == ["demo", "law"]
    requests = (await asyncio.to_thread(told, "/sim/requests"))["requests"]
    assert len(requests) == 2, "each has generated a token"
    remove = Errand(kind="remove_weights", weights="law-lora@v1")
    await box.want(wanted, errands=(ErrandWanted(number=1, errand=remove),))
    ended = await box.next(MachineErrandEnded)
    assert (ended.outcome, ended.reason) == ("refused", "r-1-0 uses law-lora@v1: stop its model first")


async def test_an_adapter_that_was_not_loaded_fails_the_start(box: Box, mirror: FileServer) -> None:
    box.start_agent(NOT_LISTED)
    await box.want(shard(loras=(lora(mirror),)))
    failed = await box.next(ShardFailed)
    assert failed.phase == "loading"
    assert failed.reason == "the adapter law was not loaded: the engine lists demo"
    assert box.engine_pids() == {}


async def test_an_adapter_that_says_no_rank_fails_before_the_engine_is_started(box: Box, mirror: FileServer) -> None:
    box.start_agent()
    await box.want(shard(loras=(lora(mirror, b'{"rank": 8}'),)))
    failed = await box.next(ShardFailed)
    assert "no adapter_config.json that says its rank" in failed.reason
    assert box.story() == ["ShardStarting", "ShardFailed"]
