"""A machine as settings invent it: what its driver, its kernel and its tools would say."""

from __future__ import annotations

import time

import msgspec

from libs.events.machine import FabricPort
from libs.simulated_machines import SimulatedFabric, SimulatedFault, SimulatedGpus, SimulatedMachine
from services.nodeagent.adapters.gpu.nvml import Gpus
from services.nodeagent.adapters.host.fabric import ROOT
from services.nodeagent.adapters.host.host_access import HostAccess
from services.nodeagent.adapters.host.pci import NVIDIA, PCI

from .faults import apply
from .host_access import Described, Description, Said
from .nvml import Card, Fabric, Instance, Library

_COMPLETED = 3
_MANAGER = "sminfo: sm lid 1 sm guid 0x1, activity count 1 priority 0 state 3 SMINFO_MASTER\n"


class Invented:
    """The surroundings of an invented machine. ``advance`` lets happen to it what is due."""

    def __init__(self, machine_id: str, machine: SimulatedMachine) -> None:
        self._machine_id = machine_id
        self._machine = machine
        self._classes: dict[str, SimulatedGpus] = {}
        self._networks: dict[str, SimulatedFabric] = {}
        self.silent = False
        self.description = Description(nvml=self._library())
        for fabric in machine.fabrics:
            self._add(fabric)
        self._on_the_bus()
        if machine.nvlink_domain is not None:
            state = f"LoadState=loaded\nActiveState={machine.imex}\n"
            self.description.commands["systemctl show --property=LoadState,ActiveState nvidia-imex"] = Said(out=state)
            self.description.files["/dev/nvidia-caps-imex-channels/channel0"] = ""
        self.host: HostAccess = Described(self.description)
        self._begun = time.monotonic()
        self._due: list[SimulatedFault] = sorted(machine.faults, key=lambda fault: fault.after_s)

    def advance(self) -> bool:
        """Whether something happened."""
        happened = False
        while self._due and time.monotonic() - self._begun >= self._due[0].after_s:
            fault = self._due.pop(0)
            if fault.kind in ("silent", "heard"):
                self.silent = fault.kind == "silent"
            else:
                apply(self.description, fault)
            happened = True
        return happened

    def named(self, gpus: Gpus) -> Gpus:
        """The cards under the class the settings give them, whatever a real card of that size would be called."""
        if not self._classes:
            return Gpus(state="absent", reason="this simulated machine has none")
        renamed = []
        for gpu in gpus.gpus:
            group = self._classes.get(gpu.uuid)
            if group is not None:
                problems = (*group.problems, *gpu.problems)
                gpu = msgspec.structs.replace(gpu, gpu_class=group.gpu_class, problems=problems)
            renamed.append(gpu)
        return msgspec.structs.replace(gpus, gpus=tuple(renamed), source="invented")

    def measured(self, ports: tuple[FabricPort, ...]) -> tuple[FabricPort, ...]:
        """The ports on the networks the settings put them."""
        measured_ports = []
        for port in ports:
            fabric = self._networks[port.nic]
            if port.network is not None:
                port = msgspec.structs.replace(port, network=fabric.network)
            if port.managers and fabric.network is not None:
                # Every invented fabric is scanned alike; what is under one manager would count as one.
                manager = fabric.network.removeprefix("sm:")
                port = msgspec.structs.replace(port, master_manager=manager, managers=(manager,))
            measured_ports.append(msgspec.structs.replace(port, fabric=fabric.name))
        return tuple(measured_ports)

    def _library(self) -> Library:
        cards: list[Card] = []
        numbers = 0
        for group in self._machine.gpus:
            carved = group.mig_of_mb is not None
            uuids = [f"GPU-sim-{self._machine_id}-{numbers + n}" for n in range(group.count)]
            numbers += group.count
            self._classes |= dict.fromkeys(uuids, group)
            if carved:
                cards.append(self._card(group, f"GPU-sim-{self._machine_id}-card-{len(cards)}", len(cards), uuids))
            else:
                cards += [self._card(group, uuid, len(cards) + n, []) for n, uuid in enumerate(uuids)]
        joined = [n for n, card in enumerate(cards) if card.nvlinks]
        for n in joined:
            cards[n].nvlink_peers = tuple(other for other in joined if other != n)
        return Library(driver="simulated", cards=cards, error=None if cards else "LIBRARY_NOT_FOUND")

    def _card(self, group: SimulatedGpus, uuid: str, number: int, instances: list[str]) -> Card:
        profile = group.gpu_class.partition("-mig-")[2] or "1g.10gb"
        held: dict[int, int | None] = {group.foreign_pid: group.used_mb} if group.foreign_pid is not None else {}
        capability = group.capability.split(".") if group.capability else None
        cluster, _, clique = (self._machine.nvlink_domain or "").partition("/")
        return Card(
            name=group.name or f"simulated {group.gpu_class}",
            uuid=uuid,
            memory_mb=group.mig_of_mb or group.memory_mb,
            memory_used_mb=group.used_mb,
            bus_id=f"00000000:{number + 1:02X}:00.0",
            capability=(int(capability[0]), int(capability[1])) if capability else None,
            nvlinks=18 if group.nvlink else 0,
            fabric=Fabric(state=_COMPLETED, cluster_uuid=cluster, clique=int(clique or 0)) if cluster else None,
            mig=True if instances else None,
            instances=tuple(
                Instance(device=n, uuid=instance_uuid, profile=profile, memory_mb=group.memory_mb, processes=held)
                for n, instance_uuid in enumerate(instances)
            ),
            pcie=(None, None, group.lanes, group.card_lanes),
            utilisation=(0, 0),
            temperature_c=35,
            power_mw=60_000,
            power_limit_mw=group.power_limit_watts * 1000 if group.power_limit_watts else None,
            power_default_mw=group.power_default_watts * 1000 if group.power_default_watts else None,
            throttle=0,
            remapped=(0, 0, 0, 0),
            processes=held,
        )

    def _add(self, fabric: SimulatedFabric) -> None:
        files, commands = self.description.files, self.description.commands
        for nic in fabric.nics:
            self._networks[nic] = fabric
            port = f"{ROOT}/{nic}/ports/1"
            files[f"{port}/state"] = "4: ACTIVE"
            files[f"{port}/phys_state"] = "5: LinkUp"
            files[f"{port}/rate"] = f"{fabric.rate_gbps or 400:g} Gb/sec"
            files[f"{port}/link_layer"] = "InfiniBand" if fabric.kind == "infiniband" else "Ethernet"
            files[f"{port}/counters/symbol_error"] = "0"
            if fabric.network is None:
                continue
            if fabric.kind == "infiniband":
                commands[f"sminfo -C {nic} -P 1"] = Said(out=_MANAGER)
            else:
                files[f"{port}/gids/3"] = "0000:0000:0000:0000:0000:ffff:0a00:0001"
                files[f"{port}/gid_attrs/types/3"] = "RoCE v2"
                files[f"{port}/gid_attrs/ndevs/3"] = "sim0"
                files["/proc/net/route"] = "head\nsim0\t0000000A\t00000000\t1\t0\t0\t0\t000000FF\t0\t0\t0\n"

    def _on_the_bus(self) -> None:
        """Let the kernel see the cards, whatever the driver does."""
        assert self.description.nvml is not None
        for card in self.description.nvml.cards:
            folder = f"{PCI}/0000:{(card.bus_id or '').lower()[9:]}"
            self.description.files |= {f"{folder}/vendor": NVIDIA, f"{folder}/class": "0x030200"}
