"""How settings and fleet files describe hardware that is not there, and what happens to it in its time."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

FaultKind = Literal[
    "gpu_lost", "gpu_back", "xid", "remap_pending", "remap_failed", "remap_done", "hot", "cool",
    "foreign_memory", "foreign_gone", "driver_fails", "driver_back", "port_down", "port_up", "nvlink_left",
    "nvlink_joined", "silent", "heard",
]  # fmt: skip


class SimulatedGpus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs of one class in an invented machine."""

    gpu_class: str = msgspec.field(name="class")
    memory_mb: int
    count: int = 1
    name: str = ""
    capability: str | None = None
    nvlink: bool | None = None
    """Whether these cards, and those of other groups that say so, are joined by NVLink."""
    mig_of_mb: int | None = None
    """They are MIG instances, all carved from one card of this memory."""
    used_mb: int = 0
    problems: tuple[str, ...] = ()
    foreign_pid: int | None = None
    """A process that is not ours holds what is used of them."""
    lanes: int | None = None
    """PCIe lanes in use, and below those the card has."""
    card_lanes: int | None = None
    power_limit_watts: int | None = None
    power_default_watts: int | None = None
    """What they may draw, and would as delivered."""


class SimulatedFabric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters on one InfiniBand or RoCE network."""

    name: str
    network: str | None = None
    """Which physical one it is measured to be; not said: it cannot be measured."""
    kind: Literal["infiniband", "roce"] = "infiniband"
    nics: tuple[str, ...] = msgspec.field(default=("mlx5_0",), name="adapters")
    rate_gbps: float | None = None


class SimulatedFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens to an invented machine."""

    after_s: float
    """Since its agent was started."""
    kind: FaultKind
    gpu: int = 0
    nic: str = msgspec.field(default="mlx5_0", name="adapter")
    xid: int = 79
    memory_mb: int = 10_000
    """What a foreign process takes."""


class SimulatedMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hardware that is not there. Everything else of such a machine is real: the agent, its processes, its files."""

    cores: int
    memory_mb: int
    memory_used_mb: int = 0
    memory_read_mb_s: int | None = None
    memory_read_one_core_mb_s: int | None = None
    gpus: tuple[SimulatedGpus, ...] = ()
    fabrics: tuple[SimulatedFabric, ...] = ()
    nvlink_domain: str | None = None
    """``<cluster uuid>/<clique>``."""
    imex: str = "active"
    faults: tuple[SimulatedFault, ...] = ()


class FleetMachine(SimulatedMachine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of a fleet file."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """It names a folder of the machine's files too."""
    copies: int = 1
    """More than one: ``ID-1``, ``ID-2`` …"""
    labels: dict[str, str] = {}
