"""Which machines can compute together: on one physical fabric, or in one NVLink domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from libs.events.machine import FabricPort, MachineRegistered


class Membership(msgspec.Struct, frozen=True):
    """What one machine can reach others over."""

    domain: str | None = None
    nics: dict[str, tuple[str, ...]] = {}
    """Fabric to the network cards that lead to it."""
    rate_gbps: dict[str, float] = {}
    """Fabric to the rate of its slowest port on it."""
    refused: str = ""
    """Why it belongs to none, as a sentence."""


class Fabrics:
    """Who is on which fabric. Ports whose subnets share a manager are on one, whatever each machine saw of it."""

    def __init__(self, machines: Mapping[str, MachineRegistered]) -> None:
        self._parents: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for facts in machines.values():
            for port in facts.ports:
                guids = _guids(port)
                for guid in guids[1:]:
                    self._join(guids[0], guid)
        self.members = {machine_id: self._membership(facts) for machine_id, facts in machines.items()}
        self.largest: dict[str, float] = {}
        """Fabric to its highest rate: a port below it trained short."""
        for member in self.members.values():
            for name, rate in member.rate_gbps.items():
                self.largest[name] = max(rate, self.largest.get(name, 0.0))

    def _find(self, guid: str) -> str:
        root = guid
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        while self._parents.get(guid, guid) != root:
            self._parents[guid], guid = root, self._parents[guid]
        return root

    def _join(self, first: str, second: str) -> None:
        low, high = sorted((self._find(first), self._find(second)))
        self._parents[high] = low

    def identity(self, port: FabricPort) -> str | None:
        """The physical fabric of a port, named by the lowest GUID of its managers; None: not known."""
        guids = _guids(port)
        return f"sm:{self._find(guids[0])}" if guids else port.network

    def called(self, identity: str) -> str:
        """A fabric for a person: what operators call it, where they do."""
        name = self._names.get(identity)
        return f"{name} ({identity})" if name else identity

    def _membership(self, facts: MachineRegistered) -> Membership:
        nics: dict[str, list[str]] = {}
        rates: dict[str, float] = {}
        named: dict[str, set[str]] = {}
        unknown = ""
        for port in facts.ports:
            if port.state != "active":
                unknown = unknown or f"its port {port.nic}/{port.port} is {port.state}"
                continue
            identity = self.identity(port)
            if identity is None:
                unknown = f"nobody knows which fabric its port {port.nic}/{port.port} is on" + (
                    f": {port.network_unknown}" if port.network_unknown else ""
                )
                continue
            if port.nic not in nics.setdefault(identity, []):
                nics[identity].append(port.nic)
            if port.rate_gbps is not None:
                rates[identity] = min(port.rate_gbps, rates.get(identity, port.rate_gbps))
            if port.fabric:
                named.setdefault(port.fabric, set()).add(identity)
                self._names.setdefault(identity, port.fabric)
        twice = next((name for name, identities in sorted(named.items()) if len(identities) > 1), None)
        domain, apart = _domain(facts)
        if twice is not None:
            both = " and ".join(sorted(named[twice]))
            refused = f"its ports call two fabrics {twice!r}, {both}: give each a name of its own"
            return Membership(domain=domain, refused="" if domain else refused)
        refused = "" if domain or nics else apart or unknown or "it has no port on a fabric"
        return Membership(
            domain=domain,
            nics={name: tuple(names) for name, names in nics.items()},
            rate_gbps=rates,
            refused=refused,
        )


def _guids(port: FabricPort) -> list[str]:
    """GUIDs of the subnet managers a port is under, as its machine saw them."""
    guids: Iterable[str] = port.managers
    if port.network is not None and port.network.startswith("sm:"):
        guids = (port.network.removeprefix("sm:"), *port.managers)
    return list(dict.fromkeys(guids))


def _domain(facts: MachineRegistered) -> tuple[str | None, str]:
    """The NVLink domain across machines that every card of this one has joined, or why there is none."""
    domains = {gpu.nvlink_domain for gpu in facts.gpus}
    if domains == {None} or not domains:
        return None, ""
    if len(domains) > 1:
        joined = sum(gpu.nvlink_domain is not None for gpu in facts.gpus)
        return None, f"only {joined} of its {len(facts.gpus)} cards have joined an NVLink domain"
    if facts.imex is None or facts.imex.state != "active":
        state = facts.imex.state if facts.imex is not None else "not installed"
        return None, f"its cards have joined an NVLink domain, and IMEX, which shares it, is {state}"
    return domains.pop(), ""
