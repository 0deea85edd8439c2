"""``--fleet FILE``: simulated machines, and what to apply beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from cli.declared import Item, Sections, read
from cli.failure import Failed
from libs.events.contract import Value
from libs.events.machine import (
    FabricPort,
    ForeignProcess,
    Gpu,
    GpuSample,
    Imex,
    MachineRegistered,
    MachineSample,
    MigInstance,
    PcieLink,
)


class Gpus(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs of one class."""

    gpu_class: str = msgspec.field(name="class")
    memory_mb: int
    count: int = 1
    name: str = ""
    """As the driver names the card: speeds are known by it."""
    capability: str | None = None
    nvlink: bool | None = None
    """Whether these cards, and those of other groups that say so, are joined by NVLink. Not said: not known."""
    mig_of_mb: int | None = None
    """They are MIG instances, carved from cards of this memory."""
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


class Fabric(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adapters on one InfiniBand or RoCE fabric."""

    name: str
    network: str | None = None
    """The physical fabric: two with one name differ in it. Not said: could not be measured."""
    kind: Literal["infiniband", "roce"] = "infiniband"
    nics: tuple[str, ...] = msgspec.field(default=("mlx5_0",), name="adapters")
    rate_gbps: float | None = None


class Machine(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated machine: its hardware is invented, its agent and engines are real processes."""

    id: str
    copies: int = 1
    """More than one: so many machines, ``ID-1``, ``ID-2``, …"""
    labels: dict[str, str] = {}
    cores: int
    memory_mb: int
    memory_used_mb: int = 0
    memory_read_mb_s: int | None = None
    """How fast its cores together read main memory, and below how fast one does."""
    memory_read_one_core_mb_s: int | None = None
    gpus: tuple[Gpus, ...] = ()
    fabrics: tuple[Fabric, ...] = ()
    nvlink_domain: str | None = None
    """``<cluster uuid>/<clique>`` of the NVLink domain across machines its cards have joined."""
    imex: str = "active"
    """State of the service that lets such a domain's cards share memory."""
    faults: tuple[dict[str, Any], ...] = ()
    """What happens to it in its time; its agent knows the kinds (docs/nodes.md)."""


class FleetSections(Sections, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fleet file: machines, and any section of ``llmgw apply``."""

    machines: tuple[Machine, ...] = ()


class Fleet(msgspec.Struct, frozen=True):
    """What a fleet file says: its machines, every copy for itself, and what to apply beside them."""

    machines: tuple[Machine, ...] = ()
    items: tuple[Item, ...] = ()


MACHINE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""It names a folder of the machine's files too."""


def load(file: Path) -> Fleet:
    """What a fleet file says. Raises Failed with everything that is wrong."""
    try:
        text = file.read_text()
    except OSError as error:
        raise Failed(f"the fleet file {file} cannot be read: {error.strerror}") from None
    items = read([(str(file), text)], FleetSections)
    machines: list[Machine] = []
    for document in yaml.safe_load_all(text):
        try:
            machines += msgspec.convert((document or {}).get("machines") or [], list[Machine])
        except msgspec.ValidationError as error:
            raise Failed(f"{file}: machines: {error}") from None
    machines = [copy for machine in machines for copy in _copies(machine)]
    ids = [machine.id for machine in machines]
    for machine_id in ids:
        if not MACHINE_ID.fullmatch(machine_id):
            allowed = "letters, digits, '.', '_' and '-', the first a letter or a digit"
            raise Failed(f"{file}: the machine {machine_id!r} needs another id: {allowed}")
    twice = sorted({machine_id for machine_id in ids if ids.count(machine_id) > 1})
    if twice:
        raise Failed(f"{file}: the machine {twice[0]!r} stands twice: ids must differ")
    return Fleet(tuple(machines), tuple(items))


def _copies(machine: Machine) -> Iterator[Machine]:
    if machine.copies == 1:
        yield machine
    for number in range(1, machine.copies + 1) if machine.copies > 1 else ():
        yield msgspec.structs.replace(machine, id=f"{machine.id}-{number}", copies=1)


def registered(machine: Machine) -> MachineRegistered:
    """What the agent of a machine with this hardware would report."""
    return MachineRegistered(
        at=datetime.fromtimestamp(0, UTC),
        machine_id=machine.id,
        address="",
        agent_version="",
        sealing_key="",
        os="linux",
        arch="x86_64",
        cpu_count=machine.cores,
        memory_total_mb=machine.memory_mb,
        labels=machine.labels,
        gpus=tuple(_gpus(machine)),
        gpus_state="verified" if machine.gpus else "absent",
        simulated=True,
        nvlink_stated=all(group.nvlink is not None for group in machine.gpus),
        ports=tuple(
            FabricPort(
                nic=nic,
                port=1,
                link_layer="InfiniBand" if fabric.kind == "infiniband" else "Ethernet",
                state="active",
                rate_gbps=fabric.rate_gbps,
                fabric=fabric.name,
                network=fabric.network,
            )
            for fabric in machine.fabrics
            for nic in fabric.nics
        ),
        imex=Imex(state=machine.imex) if machine.nvlink_domain else None,
        memory_read_mb_s=machine.memory_read_mb_s,
        memory_read_one_core_mb_s=machine.memory_read_one_core_mb_s,
    )


def sample(machine: Machine) -> MachineSample:
    """What its agent would measure: what is held now."""
    groups = [group for group in machine.gpus for _ in range(group.count)]
    return MachineSample(
        at=datetime.fromtimestamp(0, UTC),
        machine_id=machine.id,
        memory_used_mb=machine.memory_used_mb,
        gpus=tuple(
            GpuSample(
                uuid=_uuid(machine, i),
                memory_used_mb=group.used_mb,
                foreign_memory_mb=group.used_mb if group.foreign_pid is not None else None,
                foreign_processes=(ForeignProcess(pid=group.foreign_pid, memory_mb=group.used_mb),)
                if group.foreign_pid is not None
                else None,
            )
            for i, group in enumerate(groups)
        ),
    )


def _uuid(machine: Machine, index: int) -> str:
    return f"GPU-{machine.id}-{index}"


def _gpus(machine: Machine) -> Iterator[Gpu]:
    groups = [group for group in machine.gpus for _ in range(group.count)]
    joined = [_uuid(machine, i) for i, group in enumerate(groups) if group.nvlink]
    for i, group in enumerate(groups):
        mig = None
        if group.mig_of_mb:
            profile = group.gpu_class.partition("-mig-")[2]
            mig = MigInstance(
                card_index=0, card_uuid="", card_memory_total_mb=group.mig_of_mb, device=i, profile=profile
            )
        yield Gpu(
            index=i,
            uuid=_uuid(machine, i),
            name=group.name,
            gpu_class=group.gpu_class,
            memory_total_mb=group.memory_mb,
            compute_capability=group.capability,
            nvlink_peers=tuple(uuid for uuid in joined if uuid != _uuid(machine, i)) if group.nvlink else (),
            nvlink_domain=machine.nvlink_domain,
            mig=mig,
            problems=group.problems,
            power_limit_watts=group.power_limit_watts,
            power_default_watts=group.power_default_watts,
            pcie=PcieLink(lanes=group.lanes, card_lanes=group.card_lanes) if group.lanes is not None else None,
        )
