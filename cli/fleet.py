"""``--fleet FILE``: simulated machines, and what to apply beside them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cli.declared import Item, Sections, read
from cli.failure import Failed
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
from libs.simulated_machines import BadFleet, FleetMachine, machines_of


class FleetSections(Sections, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fleet file: machines, and any section of ``llmgw apply``."""

    machines: tuple[FleetMachine, ...] = ()


class Fleet(msgspec.Struct, frozen=True):
    """What a fleet file says: its machines, every copy for itself, and what to apply beside them."""

    machines: tuple[FleetMachine, ...] = ()
    items: tuple[Item, ...] = ()


def load(file: Path) -> Fleet:
    """What a fleet file says. Raises Failed with everything that is wrong."""
    try:
        text = file.read_text()
    except OSError as error:
        raise Failed(f"the fleet file {file} cannot be read: {error.strerror}") from None
    items = read([(str(file), text)], FleetSections)
    try:
        machines = machines_of(text)
    except BadFleet as error:
        raise Failed(f"{file}: {error}") from None
    return Fleet(machines, tuple(items))


def registered(machine: FleetMachine) -> MachineRegistered:
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


def sample(machine: FleetMachine) -> MachineSample:
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


def _uuid(machine: FleetMachine, index: int) -> str:
    return f"GPU-{machine.id}-{index}"


def _gpus(machine: FleetMachine) -> Iterator[Gpu]:
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
