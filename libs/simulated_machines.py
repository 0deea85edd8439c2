"""Simulated machines: how settings and fleet files describe their hardware, and what happens to it in its time.

Everything else of such a machine is real: its agent, its processes, its files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec
import yaml

FaultKind = Literal[
    "gpu_lost", "gpu_back", "xid", "remap_pending", "remap_failed", "remap_done", "hot", "cool",
    "foreign_memory", "foreign_gone", "driver_fails", "driver_back", "port_down", "port_up", "nvlink_left",
    "nvlink_joined", "silent", "heard",
]  # fmt: skip


class SimulatedGpus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """GPUs of one class in an simulated machine."""

    gpu_class: str = msgspec.field(name="class")
    memory_mb: int
    count: int = 1
    name: str = ""
    """As the driver names the card: speeds are known by it."""
    capability: str | None = None
    nvlink: bool | None = None
    """Whether these cards, and those of other groups that say so, are joined by NVLink. Not stated: not known."""
    mig_of_mb: int | None = None
    """They are MIG instances, all carved from one card of this memory."""
    used_mb: int = 0
    """Held on each of them now."""
    problems: tuple[str, ...] = ()
    """What keeps them out of use, as sentences."""
    foreign_pid: int | None = None
    """A process that is not ours holds what is used of them."""
    lanes: int | None = None
    """PCIe lanes in use, and below those the card has."""
    card_lanes: int | None = None
    power_limit_watts: int | None = None
    power_default_watts: int | None = None
    """What they may draw, and would as delivered."""


class SimulatedFabric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Network cards on one InfiniBand or RoCE network."""

    name: str
    network: str | None = None
    """Which physical one it is measured to be; not said: it cannot be measured."""
    kind: Literal["infiniband", "roce"] = "infiniband"
    nics: tuple[str, ...] = msgspec.field(default=("mlx5_0",), name="adapters")
    rate_gbps: float | None = None


class SimulatedFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something that happens to an simulated machine."""

    after_s: float
    """Since its agent was started."""
    kind: FaultKind
    gpu: int = 0
    nic: str = msgspec.field(default="mlx5_0", name="adapter")
    xid: int = 79
    memory_mb: int = 10_000
    """What a foreign process takes."""


class SimulatedMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Hardware that is not there."""

    cores: int
    memory_mb: int
    memory_used_mb: int = 0
    memory_read_mb_s: int | None = None
    """How fast its cores together read main memory, and below how fast one does."""
    memory_read_one_core_mb_s: int | None = None
    gpus: tuple[SimulatedGpus, ...] = ()
    fabrics: tuple[SimulatedFabric, ...] = ()
    nvlink_domain: str | None = None
    """``<cluster uuid>/<clique>`` of the NVLink domain across machines its cards have joined."""
    imex: str = "active"
    """State of the service that lets such a domain's cards share memory."""
    faults: tuple[SimulatedFault, ...] = ()


class FleetMachine(SimulatedMachine, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A machine of a fleet file."""

    id: str
    """It names a folder of the machine's files too."""
    copies: int = 1
    """More than one: ``ID-1``, ``ID-2`` …"""
    labels: dict[str, str] = {}


class BadFleet(Exception):
    """A fleet file does not describe machines; the sentence says what is wrong with which."""


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def machines_of(text: str) -> tuple[FleetMachine, ...]:
    """The machines a fleet file's text describes, copies apart; what else it declares is for ``llmgw apply``.

    Raises BadFleet.
    """
    described: list[FleetMachine] = []
    try:
        for document in yaml.safe_load_all(text):
            described += msgspec.convert((document or {}).get("machines") or [], list[FleetMachine])
    except (yaml.YAMLError, msgspec.ValidationError, AttributeError) as error:
        raise BadFleet(f"machines: {error}") from None
    machines = tuple(copy for machine in described for copy in _copies(machine))
    seen: set[str] = set()
    for machine in machines:
        if not _ID.fullmatch(machine.id):
            allowed = "letters, digits, '.', '_' and '-', the first a letter or a digit"
            raise BadFleet(f"the machine {machine.id!r} needs another id: {allowed}")
        if machine.id in seen:
            raise BadFleet(f"the machine {machine.id!r} stands twice: ids must differ")
        seen.add(machine.id)
    return machines


def _copies(machine: FleetMachine) -> Iterator[FleetMachine]:
    if machine.copies == 1:
        yield machine
        return
    for number in range(1, machine.copies + 1):
        yield msgspec.structs.replace(machine, id=f"{machine.id}-{number}", copies=1)
