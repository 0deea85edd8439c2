"""Facts a node agent reports about one shard: the part of a replica that runs on its machine."""

from __future__ import annotations

from typing import Literal

from .contract import Event, registered

Phase = Literal["refused", "fetching", "checking", "starting", "loading", "ready", "stopping"]


class ShardEvent(Event, frozen=True, kw_only=True, tag="shard.v0"):
    ids = ("machine_id", "shard_id")
    machine_id: str
    shard_id: str
    replica_id: str
    model: str
    generation: int
    """The generation of the desired state it was started for."""


@registered
class ShardStarting(ShardEvent, frozen=True, kw_only=True, tag="shard.starting.v1"):
    """The agent took it up: room was checked, weights are fetched next."""

    engine: str


@registered
class ShardLoading(ShardEvent, frozen=True, kw_only=True, tag="shard.loading.v1"):
    """Weights are here and checked; the engine process runs and loads them."""

    pid: int
    fetched_bytes: int = 0
    """What had to be fetched for it; 0 when everything was here."""


@registered
class ShardReady(ShardEvent, frozen=True, kw_only=True, tag="shard.ready.v1"):
    """The engine is healthy and has generated a token."""

    pid: int
    url: str
    """Base URL without ``/v1``."""
    loaded_ms: int
    engine: str = ""
    engine_version: str = ""
    gpu_memory_mb: dict[str, int] = {}
    """What it holds on each of its GPUs (by UUID), as far as the driver says; empty when it computes on the CPU."""
    backend: str = ""
    """What computes, as far as the engine says: ``cpu``, ``cuda``, ``metal`` …"""
    gpu_layers: int | None = None
    """Of the model's layers, those that compute on its GPUs; None when the engine does not say."""
    layers: int | None = None
    """The model's layers in all, the output layer counted in as the engine counts it."""


@registered
class ShardAdopted(ShardEvent, frozen=True, kw_only=True, tag="shard.adopted.v1"):
    """A restarted agent found the engine still running and took it over."""

    pid: int
    url: str
    ready: bool


@registered
class ShardFailed(ShardEvent, frozen=True, kw_only=True, tag="shard.failed.v1"):
    """It will not serve. Nothing of it is left running."""

    phase: Phase
    reason: str
    """A sentence; never engine output, which may hold prompts."""
    exit_code: int | None = None


@registered
class ShardStopped(ShardEvent, frozen=True, kw_only=True, tag="shard.stopped.v1"):
    """It was stopped on purpose; its processes and memory are gone."""

    reason: str = ""
