"""Facts a node agent reports about its own machine."""

from __future__ import annotations

from typing import Literal

from .contract import Event, Telemetry, Value, registered


class Gpu(Value, frozen=True, kw_only=True):
    """One GPU, or one MIG instance in place of the card it is carved from."""

    index: int
    uuid: str
    name: str
    gpu_class: str
    """Derived: ``h100-80g``, ``a100-80g-mig-3g.40gb``."""
    memory_total_mb: int
    compute_capability: str | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    nvlink_peers: tuple[str, ...] = ()
    """UUIDs of the GPUs reached over NVLink."""
    problems: tuple[str, ...] = ()


class Filesystem(Value, frozen=True, kw_only=True):
    path: str
    device: str
    total_mb: int
    shared: bool = False


class EngineFound(Value, frozen=True, kw_only=True):
    """An engine this agent can start: it saw it run, or its settings name it."""

    engine: str
    version: str
    source: str
    """Where it is: a path or a package."""


@registered
class MachineRegistered(Event, frozen=True, kw_only=True, tag="machine.registered.v1"):
    """The machine as it is: sent when the agent starts and when something of it changes."""

    ids = ("machine_id",)
    machine_id: str
    address: str
    """Where engines on it are reached."""
    agent_version: str
    sealing_key: str
    """Public X25519 key (hex): secrets meant for this machine are sealed to it."""
    os: str
    arch: str
    cpu_count: int
    cpu_flags: tuple[str, ...] = ()
    memory_total_mb: int
    labels: dict[str, str] = {}
    gpus: tuple[Gpu, ...] = ()
    gpus_state: Literal["verified", "unverified", "absent"] = "absent"
    gpus_reason: str = ""
    """Why there are none, or why the list is the last known one."""
    driver: str | None = None
    engines: tuple[EngineFound, ...] = ()
    engines_probed: bool = True
    filesystems: tuple[Filesystem, ...] = ()
    simulated: bool = False
    problems: tuple[str, ...] = ()
    """What of it is worse than it should be, as sentences: what it costs and how to mend it."""


class GpuSample(Value, frozen=True, kw_only=True):
    uuid: str
    memory_used_mb: int | None = None
    foreign_memory_mb: int | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    power_watts: float | None = None


class ShardSample(Value, frozen=True, kw_only=True):
    shard_id: str
    rss_mb: int | None = None
    cpu_cores: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None
    """0 to 1."""
    tokens_total: int | None = None


@registered
class MachineSample(Telemetry, frozen=True, kw_only=True, tag="tel.machine.sample.v1"):
    """How the machine is doing, every two seconds. Its silence is what makes a node lost."""

    ids = ("machine_id",)
    machine_id: str
    cpu_percent: float | None = None
    load_1m: float | None = None
    memory_used_mb: int | None = None
    disk_free_mb: dict[str, int] = {}
    gpus: tuple[GpuSample, ...] = ()
    shards: tuple[ShardSample, ...] = ()
    """Every shard of which a process is there."""
    fetching: dict[str, str] = {}
    """Weights being fetched: name to ``done/total bytes``."""


@registered
class ShardOutput(Telemetry, frozen=True, kw_only=True, tag="tel.shard.output.v1"):
    """The last lines an engine printed before it failed. Never on a lasting stream: they may hold prompts."""

    ids = ("machine_id", "shard_id")
    machine_id: str
    shard_id: str
    lines: tuple[str, ...]
