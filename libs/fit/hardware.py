"""A fleet's machines as the plan sees them, from the facts their agents report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from libs.events.machine import Gpu, MachineRegistered, MachineSample

from .health import usable
from .memory import USABLE, USABLE_MAIN

MIB = 1 << 20


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, or a MIG instance."""

    uuid: str
    gpu_class: str
    name: str = ""
    memory_bytes: int
    used_bytes: int = 0
    """Held now, by whomever."""
    capability: tuple[int, int] | None = None
    """None: the driver did not say, which rejects nothing."""
    mig: bool = False
    share: float = 1.0
    """Of the whole card's memory and bandwidth."""
    peers: frozenset[str] = frozenset()
    """UUIDs of cards reached over NVLink."""
    domain: str | None = None
    """NVLink domain across machines that it has joined."""
    unusable: str = ""
    """Why nothing can run on it."""

    @property
    def usable_bytes(self) -> int:
        """What engines may fill of it, whatever is held now."""
        return int(self.memory_bytes * USABLE)

    @property
    def free_bytes(self) -> int:
        """What an engine may fill of it now."""
        return max(0, min(self.usable_bytes, self.memory_bytes - self.used_bytes))


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters of a machine that carry one name of a fabric."""

    name: str
    identities: frozenset[str]
    """Physical fabrics they were measured to be on."""
    kind: str = "InfiniBand"
    rate_gbps: float | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine."""

    id: str
    cores: int
    memory_bytes: int
    memory_used_bytes: int = 0
    read_bytes_s: float | None = None
    """How fast all cores read main memory, and how fast one does."""
    read_core_bytes_s: float | None = None
    vector: bool = True
    """False: an x86 CPU that shows no AVX2, several times slower than its memory."""
    cards: tuple[Card, ...] = ()
    nvlink: Literal["known", "unknown"] = "known"
    """Whether its agent could tell which cards NVLink joins."""
    networks: tuple[Network, ...] = ()
    imex: bool = False
    """The service through which an NVLink domain's cards share memory across machines is up."""
    away: str = ""
    """Why it takes no work: lost, cordoned, drained."""

    def of_class(self, gpu_class: str) -> tuple[Card, ...]:
        """Its cards of a class, less those on which nothing can run."""
        return tuple(card for card in self.cards if card.gpu_class == gpu_class and not card.unusable)

    @property
    def usable_memory_bytes(self) -> int:
        """What engines may fill of its main memory, whatever is held now."""
        return int(self.memory_bytes * USABLE_MAIN)

    @property
    def free_memory_bytes(self) -> int:
        """What an engine may fill of its main memory now."""
        return max(0, min(self.usable_memory_bytes, self.memory_bytes - self.memory_used_bytes))

    @property
    def domain(self) -> str | None:
        """The NVLink domain it can take part in: every card has joined it, and IMEX is up."""
        domains = {card.domain for card in self.cards}
        return next(iter(domains)) if self.imex and len(domains) == 1 else None


def linked(host: Host, cards: Iterable[Card], number: int) -> bool | None:
    """Whether so many of these cards are all joined by NVLink; None: not known."""
    if number == 1:
        return True
    if host.nvlink == "unknown":
        return None
    cards = tuple(cards)
    together = {card.uuid for card in cards}
    return any(len((card.peers | {card.uuid}) & together) >= number for card in cards)


def hosts_of(
    machines: Iterable[MachineRegistered],
    samples: Mapping[str, MachineSample] | None = None,
    away: Mapping[str, str] | None = None,
) -> tuple[Host, ...]:
    """Machines by id. ``samples``: what is held now; ``away``: why a machine takes no work."""
    samples, away = samples or {}, away or {}
    return tuple(
        _host(machine, samples.get(machine.machine_id), away.get(machine.machine_id, ""))
        for machine in sorted(machines, key=lambda machine: machine.machine_id)
    )


def _host(machine: MachineRegistered, sample: MachineSample | None, away: str) -> Host:
    used = {gpu.uuid: gpu.memory_used_mb or 0 for gpu in sample.gpus} if sample else {}
    stated = machine.nvlink_stated or not machine.simulated
    links_known = (machine.gpus_state == "verified" and stated) or any(gpu.nvlink_peers for gpu in machine.gpus)
    return Host(
        id=machine.machine_id,
        cores=machine.cpu_count,
        memory_bytes=machine.memory_total_mb * MIB,
        memory_used_bytes=(sample.memory_used_mb or 0) * MIB if sample else 0,
        read_bytes_s=_per_second(machine.memory_read_mb_s),
        read_core_bytes_s=_per_second(machine.memory_read_one_core_mb_s),
        vector=not machine.cpu_flags or machine.arch != "x86_64" or "avx2" in machine.cpu_flags,
        cards=tuple(_card(gpu, used.get(gpu.uuid, 0)) for gpu in machine.gpus),
        nvlink="known" if links_known else "unknown",
        networks=tuple(_networks(machine)),
        imex=machine.imex is not None and machine.imex.state == "active",
        away=away,
    )


def _per_second(mb_s: int | None) -> float | None:
    return mb_s * 1e6 if mb_s else None


def _card(gpu: Gpu, used_mb: int) -> Card:
    return Card(
        uuid=gpu.uuid,
        gpu_class=gpu.gpu_class,
        name=gpu.name.split(" MIG ")[0],
        memory_bytes=gpu.memory_total_mb * MIB,
        used_bytes=used_mb * MIB,
        capability=capability(gpu.compute_capability),
        mig=gpu.mig is not None or "-mig-" in gpu.gpu_class,
        share=gpu.memory_total_mb / gpu.mig.card_memory_total_mb if gpu.mig else 1.0,
        peers=frozenset(gpu.nvlink_peers),
        domain=gpu.nvlink_domain,
        unusable="" if usable(gpu) else "; ".join(gpu.problems),
    )


def capability(text: str | None) -> tuple[int, int] | None:
    """``8.9`` as numbers."""
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor or 0)) if major.isdigit() and (minor or "0").isdigit() else None


def _networks(machine: MachineRegistered) -> Iterable[Network]:
    names: dict[str, list[tuple[str | None, str, float | None]]] = {}
    for port in machine.ports:
        if port.state == "active":
            name = port.fabric or port.network or f"{port.nic} of {machine.machine_id}"
            kind = "InfiniBand" if port.link_layer == "InfiniBand" else "RoCE"
            names.setdefault(name, []).append((port.network, kind, port.rate_gbps))
    for name, ports in names.items():
        rates = [rate for _, _, rate in ports if rate]
        yield Network(
            name=name,
            identities=frozenset(identity for identity, _, _ in ports if identity),
            kind=ports[0][1],
            rate_gbps=min(rates) if rates else None,
        )
