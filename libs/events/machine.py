"""Facts a node agent reports about its own machine."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from .contract import Event, Telemetry, Value, registered
from .node import ErrandKind
from .shard import Phase


class PcieLink(Value, frozen=True, kw_only=True):
    """How a card is linked to its host. The generation in use now is not here: it drops while a card idles."""

    generation: int | None = None
    """The fastest that card and slot allow together."""
    card_generation: int | None = None
    lanes: int | None = None
    """In use."""
    card_lanes: int | None = None


class MigInstance(Value, frozen=True, kw_only=True):
    """Which card a MIG instance is carved from, and how."""

    card_index: int
    card_uuid: str
    card_memory_total_mb: int
    device: int
    """Its number on the card."""
    profile: str
    """``3g.40gb``."""
    gpu_instance: int | None = None
    compute_instance: int | None = None


class NvlinkFabric(Value, frozen=True, kw_only=True):
    """A card's membership in an NVLink domain that spans machines, as the driver tells it."""

    state: Literal["not_started", "in_progress", "completed"]
    status: str = ""
    """What the fabric manager's attempt to join ended with; empty when it succeeded."""
    cluster_uuid: str | None = None
    """None also for a single machine's NVSwitch, which reports zeros: that is not a domain."""
    clique: int | None = None
    bandwidth_degraded: bool | None = None


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
    unified_memory: bool = False
    """It has none of its own: its memory is the machine's, and what runs there takes from both."""
    nvlink_peers: tuple[str, ...] = ()
    """UUIDs of the GPUs reached over NVLink."""
    problems: tuple[str, ...] = ()
    """What speaks against using the card, as sentences; what is done about each, docs/scheduling.md says. What only
    makes it slower is among the machine's problems."""
    nvlink_domain: str | None = None
    """``<cluster uuid>/<clique>`` of the domain across machines that it has joined."""
    nvlink: NvlinkFabric | None = None
    mig: MigInstance | None = None
    """Set when this is an instance. Its index is then 1000 + 100 x card + device."""
    pcie: PcieLink | None = None
    nic_distances: dict[str, str] = msgspec.field(default_factory=dict, name="adapter_distances")
    """Network adapter to how far it is: PIX, PXB, PHB, NODE or SYS, nearest first in this list."""
    ecc_enabled: bool | None = None
    power_limit_watts: int | None = None
    """What it is set to draw at most."""
    power_default_watts: int | None = None
    """The same, as its maker delivers it."""


class FabricPort(Value, frozen=True, kw_only=True):
    """One port of an InfiniBand or RoCE adapter."""

    nic: str = msgspec.field(name="adapter")
    port: int
    link_layer: Literal["InfiniBand", "Ethernet"]
    state: str
    """``active``, ``down``, ``init``, ``armed``."""
    physical_state: str = ""
    rate_gbps: float | None = None
    node_guid: str | None = None
    port_guid: str | None = None
    lid: int | None = None
    fabric: str = ""
    """What the operator calls the fabric it is on; empty when the settings name none for it."""
    network: str | None = None
    """The physical fabric it was measured to be on: ``sm:<lowest GUID of the subnet's managers>`` for InfiniBand,
    ``ip:<network>`` for RoCE. Ports with different ones cannot reach each other."""
    network_unknown: str = ""
    """Why ``network`` is not known, as a sentence."""
    master_manager: str | None = None
    """GUID of the subnet manager that serves it."""
    managers: tuple[str, ...] = ()
    """GUIDs of every subnet manager on its subnet."""
    gid_index: int | None = None
    """Of its RoCE v2 address."""
    interface: str | None = None
    """The network interface of a RoCE port."""


class Imex(Value, frozen=True, kw_only=True):
    """The service through which GPUs of an NVLink domain share memory across machines."""

    state: str
    """Of its systemd unit: ``active``, ``inactive``, ``failed``."""
    channels: int = 0


class Filesystem(Value, frozen=True, kw_only=True):
    path: str
    device: str
    total_mb: int
    shared: bool = False


class WeightsHere(Value, frozen=True, kw_only=True):
    """A version of which every file is on the machine and was checked."""

    weights: str
    """``NAME@VERSION``."""
    size_bytes: int
    shared_bytes: int = 0
    """Of that, in files which other versions here have as well."""


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
    """Whole CPUs that may be used."""
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
    cpu_quota: float | None = None
    """CPUs' time a control group allows, where that is less than all: of 1.5 one whole CPU can be given."""
    nvlink_stated: bool = False
    """Of a simulated machine: its description says of every card whether NVLink joins it, so that cards without are
    known to have none."""
    problems: tuple[str, ...] = ()
    """What of it is worse than it should be, as sentences: what it costs and how to mend it."""
    cuda: str | None = None
    """The newest CUDA version its driver supports."""
    ports: tuple[FabricPort, ...] = ()
    ports_reason: str = ""
    """Why there are none, or why they could not be looked at."""
    imex: Imex | None = None
    """None: not installed."""
    memory_read_mb_s: int | None = None
    """Measured with all cores; absent until the first measurement, minutes after the start."""
    memory_read_one_core_mb_s: int | None = None
    features: tuple[str, ...] = ()
    """Optional questions this agent answers, by tag; ``errands``: it does what it is asked to do once."""
    weights: tuple[WeightsHere, ...] = ()
    changed_settings: dict[str, str] = {}
    """What an operator changed of the agent's settings over the bus, each value as JSON."""


@registered
class MachineErrandEnded(Event, frozen=True, kw_only=True, tag="machine.errand_ended.v1"):
    """The agent did what an operator asked of it, or says why not."""

    ids = ("machine_id",)
    machine_id: str
    errand: int
    """Sequence of the event that gave it."""
    kind: ErrandKind
    outcome: Literal["done", "refused", "failed"]
    reason: str = ""
    """What was done, or why it was not, as a sentence."""


class ForeignProcess(Value, frozen=True, kw_only=True):
    """A process that is not one of our engines and holds GPU memory."""

    pid: int
    memory_mb: int | None = None


class GpuWear(Value, frozen=True, kw_only=True):
    """What wears a card out, read once a minute. Counts since the driver was loaded, but where it says otherwise."""

    pcie_replays: int | None = None
    retired_pages_single_bit: int | None = None
    """In the card's life."""
    retired_pages_double_bit: int | None = None
    retirement_pending: bool | None = None
    remapped_rows_correctable: int | None = None
    """In the card's life."""
    remapped_rows_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    nvlink_crc_errors: int | None = None
    nvlink_replay_errors: int | None = None
    nvlink_recovery_errors: int | None = None
    xids: int | None = None
    """Errors the driver reported since the agent started."""
    last_xid: int | None = None
    last_xid_text: str = ""
    last_xid_at: datetime | None = None


class ChipUse(Value, frozen=True, kw_only=True):
    """How much of a chip its work uses, which utilisation does not say: that is the share of time any kernel ran."""

    source: Literal["gpm", "dcgm"]
    sm_active_percent: float | None = None
    sm_occupancy_percent: float | None = None
    tensor_active_percent: float | None = None
    dram_active_percent: float | None = None


class GpuSample(Value, frozen=True, kw_only=True):
    uuid: str
    memory_used_mb: int | None = None
    foreign_memory_mb: int | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    power_watts: float | None = None
    foreign_processes: tuple[ForeignProcess, ...] | None = None
    """The largest first, a few of them; absent when it was not looked."""
    memory_temperature_c: float | None = None
    power_limit_watts: float | None = None
    throttled_by: tuple[str, ...] | None = None
    """What holds the clocks down now: ``sw_power_cap``, ``hw_slowdown``, ``sw_thermal``, ``hw_thermal``,
    ``power_brake``. Empty: nothing does."""
    sm_clock_mhz: int | None = None
    memory_utilisation_percent: float | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    pcie_generation: int | None = None
    """In use at the moment; it drops while the card idles."""
    wear: GpuWear | None = None
    use: ChipUse | None = None


class PortSample(Value, frozen=True, kw_only=True):
    """Counters of a network adapter's port, as the adapter names them."""

    nic: str = msgspec.field(name="adapter")
    port: int
    counters: dict[str, int] = {}


class ShardSample(Value, frozen=True, kw_only=True):
    shard_id: str
    rss_mb: int | None = None
    cpu_cores: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None
    """0 to 1."""
    tokens_total: int | None = None
    phase: Phase | None = None
    done_bytes: int | None = None
    """Of its weights, while they are fetched or checked."""
    total_bytes: int | None = None


@registered
class MachineSample(Telemetry, frozen=True, kw_only=True, tag="tel.machine.sample.v1"):
    """How the machine is doing, every two seconds. Its silence is what makes a node lost."""

    ids = ("machine_id",)
    machine_id: str
    cpu_percent: float | None = None
    load_1m: float | None = None
    memory_used_mb: int | None = None
    disk_free_mb: dict[str, int] = {}
    """By the path of the filesystem."""
    weights_free_mb: int | None = None
    """On the filesystem weights are kept on."""
    gpus: tuple[GpuSample, ...] = ()
    shards: tuple[ShardSample, ...] = ()
    """Every shard of which a process is there."""
    fetching: dict[str, str] = {}
    """Weights being fetched: name to ``done/total bytes``."""
    load_5m: float | None = None
    load_15m: float | None = None
    cpu_temperature_c: float | None = None
    """The hottest sensor's."""
    cpu_power_watts: float | None = None
    """All packages."""
    inlet_temperature_c: float | None = None
    """Of the air the board takes in."""
    ports: tuple[PortSample, ...] = ()
    gpus_reason: str = ""
    """Why the GPUs could not be measured; empty when they were, or when there are none."""


@registered
class ShardOutput(Telemetry, frozen=True, kw_only=True, tag="tel.shard.output.v1"):
    """The last lines an engine printed before it failed. Never on a lasting stream: they may hold prompts."""

    ids = ("machine_id", "shard_id")
    machine_id: str
    shard_id: str
    lines: tuple[str, ...]
