"""The ports of InfiniBand and RoCE adapters, from the kernel and the subnet tools."""

from __future__ import annotations

import time
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Literal

import msgspec

from libs.events.machine import FabricPort, PortSample
from libs.events.questions import FabricMap
from services.nodeagent.core.machine import fabric, topology
from services.nodeagent.core.machine.pcie import DISTANCES, distance

from .host_access import HostAccess, NotThere, TookTooLong
from .pci import PCI

ROOT = "/sys/class/infiniband"

_MANAGERS_S = 60.0
_TOOL_S = 5.0
_SCAN_S = 120.0
_MAX_GIDS = 64
_KEPT_S = 3600.0
"""How long a list of managers is believed while the manager in charge is one of them and the list is not told."""


class ScanFailed(Exception):
    """The fabric could not be mapped; the sentence says why."""


class Ports:
    """Reads ports; asks for the subnet's managers once a minute. Not for several threads at once."""

    def __init__(self, host: HostAccess, names: Mapping[str, tuple[str, ...]]) -> None:
        self._host = host
        self.call(names)
        self._identities: dict[tuple[str, int], tuple[float, FabricPort]] = {}
        self._managers: dict[str, tuple[float, tuple[fabric.Manager, ...]]] = {}

    def call(self, names: Mapping[str, tuple[str, ...]]) -> None:
        """What the operator calls the fabrics, each with this machine's adapters on it."""
        self._names = {nic: name for name, nics in names.items() for nic in nics}

    def look(self) -> tuple[tuple[FabricPort, ...], str]:
        """Every port, and why there is none."""
        nics = self._host.names(ROOT)
        if not nics:
            return (), "the kernel shows no InfiniBand or RoCE adapter (/sys/class/infiniband)"
        ports = [self._port(nic, number) for nic in nics for number in self._numbers(nic)]
        return tuple(ports), ""

    def samples(self) -> tuple[PortSample, ...]:
        """The counters of every port that has any."""
        samples = []
        for nic in self._host.names(ROOT):
            for number in self._numbers(nic):
                folder = f"{ROOT}/{nic}/ports/{number}"
                counters = {}
                for kind, names in (("counters", fabric.COUNTERS), ("hw_counters", fabric.HARDWARE_COUNTERS)):
                    for name in names:
                        count = self._host.text(f"{folder}/{kind}/{name}")
                        if count is not None and count.isdigit():
                            counters[name] = int(count)
                if counters:
                    samples.append(PortSample(nic=nic, port=number, counters=counters))
        return tuple(samples)

    def _numbers(self, nic: str) -> list[int]:
        return [int(name) for name in self._host.names(f"{ROOT}/{nic}/ports") if name.isdigit()]

    def _port(self, nic: str, number: int) -> FabricPort:
        folder = f"{ROOT}/{nic}/ports/{number}"
        layer: Literal["InfiniBand", "Ethernet"] = (
            "Ethernet" if self._host.text(f"{folder}/link_layer") == "Ethernet" else "InfiniBand"
        )
        lid = self._host.text(f"{folder}/lid") or ""
        port = FabricPort(
            nic=nic,
            port=number,
            link_layer=layer,
            state=fabric.word(self._host.text(f"{folder}/state")) or "unknown",
            physical_state=fabric.word(self._host.text(f"{folder}/phys_state")),
            rate_gbps=fabric.rate_gbps(self._host.text(f"{folder}/rate")),
            node_guid=fabric.guid(self._host.text(f"{ROOT}/{nic}/node_guid")),
            port_guid=fabric.guid((self._host.text(f"{folder}/gids/0") or "").replace(":", "")[16:]),
            lid=int(lid, 16) if layer == "InfiniBand" and lid.startswith("0x") and int(lid, 16) else None,
            fabric=self._names.get(nic, ""),
        )
        if layer == "Ethernet":
            return self._roce(port, folder)
        return self._infiniband(port)

    def _roce(self, port: FabricPort, folder: str) -> FabricPort:
        if port.state != "active":
            return msgspec.structs.replace(port, network_unknown=f"the port is {port.state}")
        for index in range(_MAX_GIDS):
            kind = self._host.text(f"{folder}/gid_attrs/types/{index}")
            address = fabric.roce_address(self._host.text(f"{folder}/gids/{index}") or "")
            if kind is None or "v2" not in kind.lower() or address is None:
                continue
            interface = self._host.text(f"{folder}/gid_attrs/ndevs/{index}") or ""
            routes = self._host.text("/proc/net/route") or ""
            if isinstance(address, IPv4Address):
                network = fabric.network_of(address, interface, routes)
            else:
                network = f"ip:{address.exploded[:19]}::/64"
            why = "" if network else f"no route leads to the network of {address} over {interface or 'an interface'}"
            return msgspec.structs.replace(
                port, network=network, network_unknown=why, gid_index=index, interface=interface or None
            )
        why = "the port has no RoCE v2 address: give its interface an IP address"
        return msgspec.structs.replace(port, network_unknown=why)

    def _infiniband(self, port: FabricPort) -> FabricPort:
        if port.state != "active":
            why = f"the port is {port.state}" + (
                ": no subnet manager has set it up" if port.state in ("init", "initialize", "armed") else ""
            )
            return msgspec.structs.replace(port, network_unknown=why)
        key, now = (port.nic, port.port), time.monotonic()
        known = self._identities.get(key)
        if known is None or now - known[0] >= _MANAGERS_S:
            known = self._identities[key] = now, self._managed(port, now)
        return msgspec.structs.replace(
            port,
            network=known[1].network,
            network_unknown=known[1].network_unknown,
            master_manager=known[1].master_manager,
            managers=known[1].managers,
        )

    def _managed(self, port: FabricPort, now: float) -> FabricPort:
        through = ("-C", port.nic, "-P", str(port.port))
        try:
            answer = self._host.run("sminfo", *through, timeout_s=_TOOL_S)
        except NotThere:
            why = "which subnet manager serves it is not known: install the package infiniband-diags (sminfo)"
            return msgspec.structs.replace(port, network_unknown=why)
        except TookTooLong as error:
            return msgspec.structs.replace(port, network_unknown=str(error))
        master = fabric.master(answer.out)
        if answer.code != 0 or master is None:
            return msgspec.structs.replace(port, network_unknown=f"no subnet manager answers: {_last(answer.err)}")
        everyone: tuple[fabric.Manager, ...] = ()
        try:
            everyone = fabric.managers(self._host.run("saquery", *through, "SMIR", timeout_s=_TOOL_S).out)
        except (NotThere, TookTooLong):
            everyone = ()
        if master.guid in {manager.guid for manager in everyone}:
            self._managers[master.guid] = now, everyone
        else:
            # Without the list the name would change with the manager in charge.
            for at, earlier in self._managers.values():
                if now - at < _KEPT_S and master.guid in {manager.guid for manager in earlier}:
                    everyone = earlier
        return msgspec.structs.replace(
            port,
            network=fabric.subnet(master, everyone),
            master_manager=master.guid,
            managers=tuple(manager.guid for manager in everyone) or (master.guid,),
        )


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "it gave no reason"


def distances(host: HostAccess, bus_id: str | None, node: int | None) -> dict[str, str]:
    """How far each adapter is from the card at ``bus_id``, nearest first."""
    card = host.target(f"{PCI}/{bus_id}") if bus_id is not None else None
    if card is None:
        return {}
    by_nic = {}
    for nic in host.names(ROOT):
        device = host.target(f"{ROOT}/{nic}/device")
        if device is None:
            continue
        numa_node = host.text(f"{device}/numa_node") or ""
        by_nic[nic] = distance(card, device, node, int(numa_node) if numa_node.isdigit() else None)
    return dict(sorted(by_nic.items(), key=lambda entry: (DISTANCES.index(entry[1]), entry[0])))


def scan(host: HostAccess, nic: str, port: int) -> FabricMap:
    """Map the fabric seen through one port. Raises ScanFailed."""
    try:
        ran = host.run("ibnetdiscover", "-C", nic, "-P", str(port), timeout_s=_SCAN_S)
    except NotThere:
        raise ScanFailed("ibnetdiscover is not installed: install the package infiniband-diags") from None
    except TookTooLong as error:
        raise ScanFailed(str(error)) from None
    if ran.code != 0 or "Switch" not in ran.out + "Ca":
        raise ScanFailed(f"ibnetdiscover failed on {nic} port {port}: {_last(ran.err)}")
    return topology.read(ran.out)
