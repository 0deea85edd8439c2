"""Wishes to make tests of."""

from __future__ import annotations

from typing import Any

from libs.events.library import WeightFile
from libs.events.views import Desired, ShardWanted, WeightsWanted


def shard(shard_id: str = "r-1-0", **fields: Any) -> ShardWanted:
    given: dict[str, Any] = {
        "shard_id": shard_id,
        "replica_id": shard_id.rpartition("-")[0],
        "model": "demo",
        "served_name": "demo",
        "profile": "cpu",
        "engine": "sim",
    }
    return ShardWanted(**(given | fields))


def desired(generation: int, *shards: ShardWanted, machine_id: str = "box") -> Desired:
    return Desired(machine_id=machine_id, generation=generation, shards=shards)


def weights(*files: WeightFile, mirrors: tuple[str, ...] = (), name: str = "demo") -> WeightsWanted:
    return WeightsWanted(name=name, version="v1", files=files, mirrors=mirrors)


def gguf(sha256: str = "a" * 64, size_bytes: int = 10, path: str = "model.gguf") -> WeightFile:
    return WeightFile(path=path, size_bytes=size_bytes, sha256=sha256)
