"""What is wrong with a machine: from facts to findings, the most serious first, each with what it costs and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from libs.engines import traits_of
from libs.events.machine import (
    FabricPort,
    Gpu,
    GpuSample,
    Imex,
    PortSample,
)
from libs.events.questions import Finding
from libs.fit.health import Verdict, usable, verdict

from . import hardware
from .cards import SERIOUS_XIDS, label, xid_text
from .pcie import shortfall

_ORDER = ("broken", "costly", "note", "fine")
_FULL_MB, _TIGHT_MB = 2_000, 20_000
_ERRORS = ("symbol_error", "link_downed", "port_rcv_errors", "local_link_integrity_errors", "port_xmit_discards")
_FOREIGN_MB = 200


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a check-up concludes from."""

    arch: str
    cpu_count: int
    cpu_quota: float | None = None
    """CPUs' time a control group allows; None: all."""
    cpu_flags: tuple[str, ...]
    memory_total_mb: int
    simulated: bool = False
    """Its hardware is invented: the simulated engine is what runs there."""
    gpus: tuple[Gpu, ...] = ()
    gpus_state: str = "absent"
    gpus_reason: str = ""
    gpus_problems: tuple[str, ...] = ()
    driver: str | None = None
    samples: tuple[GpuSample, ...] = ()
    switches: int = 0
    """NVSwitches in the machine."""
    units: dict[str, str | None] = {}
    """Services of NVIDIA's to their state; None: not installed."""
    imex: Imex | None = None
    ports: tuple[FabricPort, ...] = ()
    port_samples: tuple[PortSample, ...] = ()
    modules: tuple[str, ...] = ()
    """Kernel modules loaded, of those that are looked for."""
    memlock_bytes: int | None = None
    """What an engine may pin; None: no limit."""
    xids: dict[int, int] = {}
    """Errors the driver reported since the machine was started: number to count."""
    disk_free_mb: int | None = None
    data_dir: str = ""
    engines: tuple[str, ...] = ()


_MEANS: dict[Verdict, tuple[Literal["broken", "costly", "note"], str]] = {
    "out": ("broken", "it is left out of placement, and what runs there is moved"),
    "suspect": ("broken", "nothing new is placed there"),
    "slow": ("costly", "it is given work last"),
    "note": ("note", "nothing by itself"),
}
"""What follows for a card from the verdict on a sentence about it."""


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Everything that is wrong, or worth knowing, the most serious first."""
    everything = [
        *_gpus(facts),
        *_links(facts),
        *_services(facts),
        *_use(facts),
        *_ports(facts),
        *_rdma(facts),
        *_machine(facts),
    ]
    return tuple(sorted(everything, key=lambda finding: _ORDER.index(finding.severity)))


def _gpus(facts: Facts) -> Iterator[Finding]:
    if facts.gpus_state == "unverified":
        yield Finding(
            severity="broken",
            subject="GPUs",
            found=facts.gpus_reason,
            costs="no model can be placed on this machine's GPUs",
            fix=_driver_fix(facts.gpus_reason),
        )
    for problem in facts.gpus_problems:
        yield Finding(
            severity="broken",
            subject="GPUs",
            found=problem,
            costs="what ran there is gone, and models that need all cards cannot be placed",
            fix="see the sentence; the kernel's log says more: dmesg | grep -i nvrm",
        )
    for gpu in facts.gpus:
        for problem in gpu.problems:
            severity, costs = _MEANS[verdict(problem)]
            yield Finding(severity=severity, subject=label(gpu), found=problem, costs=costs, fix=_gpu_fix(problem))
        if gpu.ecc_enabled is False:
            yield Finding(
                severity="note",
                subject=label(gpu),
                found="error correction is off",
                costs="a flipped bit in its memory changes answers and nobody notices",
                fix=f"nvidia-smi -i {gpu.index} -e 1, then reset the card or reboot",
            )
    serious = {number: count for number, count in facts.xids.items() if number in SERIOUS_XIDS}
    for number, count in sorted(serious.items()):
        yield Finding(
            severity="costly",
            subject="GPUs",
            found=f"the driver reported XID {number} ({xid_text(number)}) {count} times since the machine was started",
            costs="engines on that card die with it",
            fix="if it comes again, drain the machine and have the card looked at",
        )
    sound = [gpu for gpu in facts.gpus if usable(gpu)]
    if sound and facts.gpus_state == "verified":
        classes = sorted({gpu.gpu_class for gpu in sound})
        of = f"{len(sound)} of {len(facts.gpus)}" if len(sound) < len(facts.gpus) else str(len(sound))
        text = f"{of} can be used ({', '.join(classes)}), driver {facts.driver}"
        yield Finding(severity="fine", subject="GPUs", found=text)
    if facts.gpus_state == "absent":
        yield Finding(severity="fine", subject="GPUs", found=f"there are none: {facts.gpus_reason}")


def _driver_fix(reason: str) -> str:
    if "reboot" in reason:
        return "drain the machine and reboot it"
    if "modprobe" in reason:
        return "modprobe nvidia; if that fails, dmesg says why (Secure Boot, a kernel without the module)"
    if "no NVIDIA driver" in reason or "not installed" in reason:
        return "install NVIDIA's driver for this kernel, and reboot"
    return "dmesg | grep -i nvrm says what the driver's trouble is; a reboot is the usual cure"


def _gpu_fix(problem: str) -> str:
    if "MIG mode" in problem:
        return "carve instances (nvidia-smi mig -cgi PROFILE -C), or turn MIG off (nvidia-smi -mig 0)"
    if "must be replaced" in problem:
        return "have the card replaced"
    if "reset" in problem:
        return "drain the machine, then nvidia-smi --gpu-reset -i INDEX, or reboot it"
    return "drain the machine and reboot it; if it comes back, have the card replaced"


def _links(facts: Facts) -> Iterator[Finding]:
    cards = {gpu.pci_bus_id or gpu.uuid: gpu for gpu in facts.gpus}
    for gpu in cards.values():
        why = shortfall(gpu.pcie)
        if why is not None:
            head, _, rest = why.partition("; ")
            yield Finding(
                severity="costly",
                subject=label(gpu),
                found=f"it is {head}",
                costs="loading weights and work split over cards are slower for it",
                fix=rest.partition(": ")[2],
            )
        near = next(iter(gpu.nic_distances.values()), None)
        if near == "SYS" and any(port.state == "active" for port in facts.ports):
            yield Finding(
                severity="costly",
                subject=label(gpu),
                found="every network adapter is on the other socket",
                costs="what it sends to other machines crosses the link between the sockets",
                fix="move an adapter to a slot of its socket",
            )
        link = gpu.nvlink
        if link is not None and link.state != "completed":
            yield Finding(
                severity="broken",
                subject=label(gpu),
                found=f"it has not joined its NVLink fabric ({link.state.replace('_', ' ')})",
                costs="CUDA does not start on it, and nothing that spans its NVLink domain can be placed here",
                fix="look at the fabric manager: journalctl -u nvidia-fabricmanager (on a rack, on its switch trays)",
            )
        if link is not None and link.status:
            yield Finding(
                severity="broken",
                subject=label(gpu),
                found=f"joining its NVLink fabric ended with: {link.status}",
                costs="it cannot reach other cards over NVLink",
                fix="restart the fabric manager, then reset the card",
            )
        if link is not None and link.bandwidth_degraded:
            yield Finding(
                severity="costly",
                subject=label(gpu),
                found="some of its NVLinks are down",
                costs="models split over cards are slower by the share of the links",
                fix="nvidia-smi nvlink -s shows which; reseat the tray or the cable",
            )


def _services(facts: Facts) -> Iterator[Finding]:
    manager = facts.units.get("nvidia-fabricmanager")
    if facts.switches and manager != "active":
        yield Finding(
            severity="broken",
            subject="fabric manager",
            found=f"there are {facts.switches} NVSwitches and nvidia-fabricmanager is {manager or 'not installed'}",
            costs="CUDA does not start on any card",
            fix="install the fabric manager of the driver's exact version and systemctl enable --now it",
        )
    if any(gpu.nvlink_domain for gpu in facts.gpus):
        if facts.imex is None or facts.imex.state != "active":
            state = facts.imex.state if facts.imex else "not installed"
            yield Finding(
                severity="broken",
                subject="IMEX",
                found=f"the cards are in an NVLink domain and nvidia-imex is {state}",
                costs="no model can span machines of the domain",
                fix="systemctl enable --now nvidia-imex, with every machine of the domain in its nodes_config.cfg",
            )
        elif not facts.imex.channels:
            yield Finding(
                severity="broken",
                subject="IMEX",
                found="there is no IMEX channel",
                costs="no model can span machines of the domain",
                fix="load the driver with NVreg_CreateImexChannel0=1",
            )
    if facts.gpus_state == "verified" and facts.units.get("nvidia-persistenced", "") is None:
        yield Finding(
            severity="costly",
            subject="driver",
            found="the persistence daemon is not installed",
            costs="the driver is unloaded whenever nothing runs, and the next start waits seconds a card for it",
            fix="install nvidia-persistenced and systemctl enable --now it",
        )


def _use(facts: Facts) -> Iterator[Finding]:
    named = {gpu.uuid: label(gpu) for gpu in facts.gpus}
    for sample in facts.samples:
        subject = named.get(sample.uuid, sample.uuid)
        hot = [why for why in sample.throttled_by or () if why in ("hw_thermal", "sw_thermal", "power_brake")]
        if hot:
            yield Finding(
                severity="costly",
                subject=subject,
                found=f"its clocks are held down now by {', '.join(hot)}",
                costs="everything on it is slower while it is",
                fix="look at the fans and the air that comes in"
                if hot != ["power_brake"]
                else "the power supplies ask for it: look at them",
            )
        if sample.ecc_uncorrected:
            yield Finding(
                severity="costly",
                subject=subject,
                found=f"{sample.ecc_uncorrected} memory errors could not be corrected since the driver was loaded",
                costs="each ended the program that met it",
                fix="drain the machine and reset the card; if they come back, have it replaced",
            )
        if (sample.foreign_memory_mb or 0) > _FOREIGN_MB:
            who = ", ".join(
                f"process {one.pid}" + (f" with {one.memory_mb} MB" if one.memory_mb is not None else "")
                for one in sample.foreign_processes or ()
            )
            yield Finding(
                severity="costly",
                subject=subject,
                found=f"{sample.foreign_memory_mb} MB of its memory are held by programs that are not engines: {who}",
                costs="it is left out of placement while they do",
                fix="ps -fp PID says what they are; end them or give them other cards",
            )


def _ports(facts: Facts) -> Iterator[Finding]:
    best = max((port.rate_gbps or 0 for port in facts.ports if port.state == "active"), default=0)
    networks: dict[str, set[str]] = {}
    for port in facts.ports:
        subject = f"{port.nic} port {port.port}"
        if port.state != "active":
            yield Finding(
                severity="costly",
                subject=subject,
                found=f"it is {port.state}" + (f" ({port.physical_state})" if port.physical_state else ""),
                costs="one way less to other machines",
                fix="look at the cable and the switch port; on InfiniBand, at the subnet manager",
            )
            continue
        if port.network is None:
            yield Finding(
                severity="costly",
                subject=subject,
                found=f"which physical network it is on is not known: {port.network_unknown}",
                costs="models that span machines are not placed over it",
                fix="install infiniband-diags, or give a RoCE interface its address; see the sentence",
            )
        elif port.fabric:
            networks.setdefault(port.fabric, set()).add(port.network)
        else:
            yield Finding(
                severity="note",
                subject=subject,
                found="it is up and no fabric of the settings names it",
                costs="it is not used between machines",
                fix=f"add it to the agent's settings: fabrics: {{NAME: [{port.nic}]}}",
            )
        if port.rate_gbps is not None and port.rate_gbps < best:
            yield Finding(
                severity="costly",
                subject=subject,
                found=f"it runs at {port.rate_gbps:g} Gb/s and another at {best:g}",
                costs="a model over several machines is as slow as its slowest adapter",
                fix="look at the cable and the switch port",
            )
    for name, found in sorted(networks.items()):
        if len(found) > 1:
            which = ", ".join(sorted(found))
            yield Finding(
                severity="broken",
                subject=f"fabric {name}",
                found=f"its adapters are on {len(found)} networks that cannot reach each other: {which}",
                costs="a model that spans machines would hang in its first exchange, so none is placed over it",
                fix="give each network a name of its own in the settings, or mend the cabling",
            )
        else:
            yield Finding(severity="fine", subject=f"fabric {name}", found=f"measured to be {next(iter(found))}")
    for sample in facts.port_samples:
        errors = {name: sample.counters[name] for name in _ERRORS if sample.counters.get(name)}
        if errors:
            yield Finding(
                severity="note",
                subject=f"{sample.nic} port {sample.port}",
                found="it counted " + ", ".join(f"{count} {name}" for name, count in errors.items()),
                costs="errors are sent again, which makes exchanges between machines late",
                fix="if they rise, replace the cable or the transceiver",
            )


def _rdma(facts: Facts) -> Iterator[Finding]:
    if not any(port.state == "active" for port in facts.ports):
        return
    if "ib_uverbs" not in facts.modules:
        yield Finding(
            severity="broken",
            subject="RDMA",
            found="the kernel module ib_uverbs is not loaded",
            costs="engines cannot open the adapters and fall back to TCP",
            fix="modprobe ib_uverbs, and add it to /etc/modules-load.d",
        )
    if facts.gpus and "nvidia_peermem" not in facts.modules:
        yield Finding(
            severity="note",
            subject="RDMA",
            found="the kernel module nvidia_peermem is not loaded",
            costs="where the kernel has no DMA-BUF either, what GPUs send goes through main memory",
            fix="modprobe nvidia_peermem",
        )
    if facts.memlock_bytes is not None:
        yield Finding(
            severity="broken",
            subject="RDMA",
            found=f"programs may lock {facts.memlock_bytes // 1024} KB of memory",
            costs="an engine fails in its first exchange with another machine",
            fix="set LimitMEMLOCK=infinity in the agent's unit",
        )


def _machine(facts: Facts) -> Iterator[Finding]:
    for problem in hardware.cpu_problems(facts.arch, facts.cpu_flags):
        found, _, fix = problem.partition("; ")
        head, _, costs = found.partition(", so ")
        yield Finding(severity="costly", subject="CPU", found=head, costs=costs, fix=fix)
    cpus = facts.cpu_count if facts.cpu_quota is None else f"{facts.cpu_quota:g}"
    yield Finding(
        severity="fine",
        subject="machine",
        found=f"{cpus} CPUs, {facts.memory_total_mb // 1024} GB of memory, {facts.arch}",
    )
    if facts.disk_free_mb is not None and facts.disk_free_mb < _TIGHT_MB:
        yield Finding(
            severity="broken" if facts.disk_free_mb < _FULL_MB else "costly",
            subject="disk",
            found=f"{facts.disk_free_mb} MB are free for weights in {facts.data_dir}",
            costs="models whose weights do not fit cannot be placed here",
            fix="remove weights nobody runs (llmgw node remove-weights), or set data_dir to a larger disk",
        )
    real = [engine for engine in facts.engines if facts.simulated or not traits_of(engine).simulated]
    if not real:
        yield Finding(
            severity="broken",
            subject="engines",
            found="there is no engine on this machine",
            costs="no model can be placed here",
            fix="install xllamacpp for the agent's Python, or name an engine in its settings (engine_programs)",
        )
    else:
        yield Finding(severity="fine", subject="engines", found=f"there are {', '.join(real)}")
