"""The machine under this agent: the real one, or one the settings invent. Each source of facts may fail alone."""

from __future__ import annotations

import asyncio
import os
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from libs.events import tag_of
from libs.events.machine import (
    EngineFound,
    FabricPort,
    Filesystem,
    Gpu,
    GpuSample,
    Imex,
    MachineRegistered,
    PortSample,
)
from libs.events.questions import (
    AskDoctor,
    AskFabricMap,
    AskHeaders,
    AskLogs,
    FabricMap,
)
from services.nodeagent.adapters.gpu.dcgm_exporter import Exporter
from services.nodeagent.adapters.gpu.imex import imex
from services.nodeagent.adapters.gpu.nvml import Gpus, Nvml
from services.nodeagent.adapters.gpu.nvml_samples import Sampler, Xids
from services.nodeagent.adapters.host import fabric as ports
from services.nodeagent.adapters.host import machine
from services.nodeagent.adapters.host.fabric import Ports
from services.nodeagent.adapters.host.host_access import HostAccess, ThisMachine
from services.nodeagent.adapters.host.memory_rate import MemoryRate, measure
from services.nodeagent.adapters.host.sensors import SensorReadings, Sensors
from services.nodeagent.core.machine import hardware
from services.nodeagent.core.machine.cards import label, power_shortfall, wear_problems
from services.nodeagent.core.machine.pcie import shortfall
from services.nodeagent.core.machine.xid import xid_of
from services.nodeagent.settings import NodeAgentSettings

from .polling import OnDemand, Polling

if TYPE_CHECKING:
    from services.nodeagent.simulation.machine import Invented

FEATURES = ("errands", *sorted(tag_of(question) for question in (AskDoctor, AskFabricMap, AskHeaders, AskLogs)))

_LOOK_S = 60.0
"""Hardware changes when people touch it, and when a fabric manager restarts."""

_DISKS_S = 10.0
_PORTS_S = 10.0
"""Their state and counters; which subnet manager serves them is asked once a minute."""

_SENSORS_S = 10.0
_MEMORY_S = 3600.0
_MEMORY_AFTER_S = 180.0
"""Not while a machine that has just started loads its models."""

_STALE_S = 60.0
"""An older measurement says nothing about now."""

_FIRST_LOOK_S = 10.0
"""A driver that answers, answers within this on a machine with eight GPUs."""


class Hardware:
    """Facts of the machine, each read on a clock of its own."""

    def __init__(self, settings: NodeAgentSettings, agent_version: str, host: HostAccess | None = None) -> None:
        self._settings = settings
        self._version = agent_version
        self._simulated = settings.simulated
        self._invented: Invented | None = _invented(settings) if host is None else None
        self.host: HostAccess = host or (self._invented.host if self._invented else ThisMachine())
        memory = None if self._simulated else settings.data_dir / "gpus.json"
        self._nvml = Nvml(self.host, memory)
        self._sampler = Sampler(self._nvml, Exporter(None if self._simulated else settings.dcgm_exporter))
        self._ours: frozenset[int] = frozenset()
        self._xids: dict[str, Xids] = {}
        clock: Any = OnDemand if self._simulated else Polling
        self._gpus: Polling[tuple[Gpus, Imex | None]] = clock("the GPUs", self._look_at_gpus, _LOOK_S)
        self._filesystems: Polling[tuple[Filesystem, ...]] = clock(
            "the filesystems", lambda: machine.filesystems(settings.data_dir), _LOOK_S * (60 if self._simulated else 1)
        )
        self._disks: Polling[tuple[dict[str, int], int | None]] = clock(
            "free disk space", self._look_at_disks, _DISKS_S * (6 if self._simulated else 1)
        )
        self._gpu_samples: Polling[tuple[GpuSample, ...]] = clock(
            # Nothing changes on an invented card but what is made to happen.
            "the GPUs' state",
            self._look_at_samples,
            _LOOK_S if self._simulated else settings.sample_every_s,
        )
        self._port_reader = Ports(self.host, settings.fabrics)
        self._ports: Polling[tuple[tuple[FabricPort, ...], str, tuple[PortSample, ...]]] = clock(
            "the network adapters", self._look_at_ports, _LOOK_S if self._simulated else _PORTS_S
        )
        self._sensors = Sensors(self.host)
        self._heat: Polling[SensorReadings] = clock("heat and power", self._sensors.read, _SENSORS_S)
        self._memory_rate: Polling[MemoryRate | None] = clock(
            "the speed of memory", self._measure_memory, _MEMORY_S, after_s=0 if self._simulated else _MEMORY_AFTER_S
        )
        self._best_rate: MemoryRate | None = None
        self._cpu_flags = machine.cpu_flags(self.host)
        self._os = machine.operating_system()
        self.address = settings.address or machine.address_towards(settings.nats_url)

    def _all(self) -> tuple[Polling[Any], ...]:
        return self._gpus, self._filesystems, self._disks, self._gpu_samples, self._ports, self._heat, self._memory_rate

    async def start(self) -> None:
        """Begin to look, and wait for the first answers unless they take too long."""
        for clock in self._all():
            clock.start()
        if self._simulated:
            self._memory_rate.first(0)
            return
        waited_for: tuple[Polling[Any], ...] = (self._gpus, self._filesystems, self._ports)
        await asyncio.gather(*(asyncio.to_thread(clock.first, _FIRST_LOOK_S) for clock in waited_for))

    def stop(self) -> None:
        """Look no more."""
        for clock in self._all():
            clock.stop()

    def change(self, settings: NodeAgentSettings) -> None:
        """Go by other settings from now on."""
        self._settings = settings
        self._port_reader.call(settings.fabrics)
        self._ports.expire()
        if self._simulated is None:
            self._sampler.exporter = Exporter(settings.dcgm_exporter)
            self._gpu_samples.every_s = settings.sample_every_s

    @property
    def simulated(self) -> bool:
        """Whether the machine is an invented one."""
        return self._simulated is not None

    @property
    def cpu_count(self) -> int:
        """CPUs that engines may use."""
        return self._simulated.cores if self._simulated else machine.cpu_count()

    @property
    def gpus(self) -> Gpus:
        """The cards, with what their last measurements say against using one."""
        looked = self._gpus.latest()
        if looked is None:
            return self._nvml.last_known("the NVIDIA driver does not answer")
        cards = looked[0]
        if self._invented is not None:
            cards = self._invented.named(cards)
        return msgspec.structs.replace(cards, gpus=tuple(self._judged(gpu) for gpu in cards.gpus))

    def _judged(self, gpu: Gpu) -> Gpu:
        samples = self._gpu_samples.latest(_STALE_S) or ()
        wear = next((sample.wear for sample in samples if sample.uuid == gpu.uuid), None)
        problems = (*gpu.problems, *wear_problems(wear, datetime.now(UTC)))
        return msgspec.structs.replace(gpu, problems=problems) if problems != gpu.problems else gpu

    @property
    def ports(self) -> tuple[FabricPort, ...]:
        """The network adapters' ports, as far as they could be looked at."""
        latest = self._ports.latest()
        return latest[0] if latest is not None else ()

    def port_samples(self) -> tuple[PortSample, ...]:
        """Their counters, as far as they were read within the last minute."""
        latest = self._ports.latest(_STALE_S)
        return latest[2] if latest is not None else ()

    def heat(self) -> SensorReadings:
        """The machine's own sensors, as far as they were read within the last minute."""
        return self._heat.latest(_STALE_S) or SensorReadings()

    def _measure_memory(self) -> MemoryRate | None:
        if self._simulated is not None:
            all_cores, one_core = self._simulated.memory_read_mb_s, self._simulated.memory_read_one_core_mb_s
            self._best_rate = MemoryRate(all_cores, one_core) if all_cores and one_core else None
            return self._best_rate
        if not self._settings.measure_memory:
            return None
        measured, best = measure(self.host, self.cpu_count), self._best_rate
        if measured is not None:
            # What else ran at the time only makes it less.
            self._best_rate = MemoryRate(
                max(measured.all_cores, best.all_cores if best else 0),
                max(measured.one_core, best.one_core if best else 0),
            )
        return self._best_rate

    def map_fabric(self, nic: str, port: int) -> FabricMap:
        """Raises ScanFailed. Blocks for seconds to a minute."""
        return ports.scan(self.host, nic, port)

    @property
    def filesystems(self) -> tuple[Filesystem, ...]:
        """Those that store things, as of the last look."""
        return self._filesystems.latest() or ()

    def disk_free_mb(self) -> dict[str, int]:
        """Free space by filesystem, as far as it was read within the last minute."""
        latest = self._disks.latest(_STALE_S)
        return latest[0] if latest is not None else {}

    def weights_free_mb(self) -> int | None:
        """Free space where weights are kept, likewise."""
        latest = self._disks.latest(_STALE_S)
        return latest[1] if latest is not None else None

    def gpu_samples(self, ours: frozenset[int]) -> tuple[GpuSample, ...]:
        """How the GPUs are doing, as far as they said within the last minute; ``ours``: our engines' processes."""
        self._ours = ours
        return self._gpu_samples.latest(_STALE_S) or ()

    def gpus_reason(self) -> str:
        """Why the GPUs could not be measured within the last minute; empty when they were or there are none."""
        looked = self._gpus.latest()
        if looked is not None and looked[0].state == "absent":
            return ""
        if looked is not None and looked[0].state == "unverified":
            return looked[0].reason
        return "" if self._gpu_samples.latest(_STALE_S) is not None else "the NVIDIA driver does not answer"

    def holders(self) -> dict[str, dict[int, int | None]]:
        """GPU UUID to the processes that hold memory on it, MB each; a GPU that does not say is absent."""
        return self._sampler.holders

    def _look_at_gpus(self) -> tuple[Gpus, Imex | None]:
        cards = self._nvml.look()
        gpus = tuple(
            msgspec.structs.replace(gpu, nic_distances=ports.distances(self.host, gpu.pci_bus_id, gpu.numa_node))
            for gpu in cards.gpus
        )
        joins = any(gpu.nvlink is not None for gpu in gpus)
        return msgspec.structs.replace(cards, gpus=gpus), imex(self.host) if joins else None

    def gpu_used_mb(self) -> dict[str, int]:
        """GPU UUID to the memory used on it, by whomever, as far as it was measured within the last minute."""
        samples = self._gpu_samples.latest(_STALE_S) or ()
        return {sample.uuid: sample.memory_used_mb for sample in samples if sample.memory_used_mb is not None}

    def _look_at_ports(self) -> tuple[tuple[FabricPort, ...], str, tuple[PortSample, ...]]:
        ports_found, why = self._port_reader.look()
        if self._invented is not None:
            ports_found = self._invented.measured(ports_found)
        return ports_found, why, self._port_reader.samples()

    @property
    def silent(self) -> bool:
        """Lets happen to an invented machine what is due; whether it is cut off from the bus."""
        if self._invented is None:
            return False
        if self._invented.advance():
            self._sampler.expire()
            self._gpus.expire()
            self._gpu_samples.expire()
            self._ports.expire()
        return self._invented.silent

    def _look_at_samples(self) -> tuple[GpuSample, ...]:
        if self._gpus.latest() is None:
            return ()
        for line in self.host.kernel_lines():
            if (xid := xid_of(line)) is not None:
                count = self._xids[xid.bus].count if xid.bus in self._xids else 0
                self._xids[xid.bus] = Xids(count + 1, xid.number, xid.text, datetime.now(UTC))
        return self._sampler.samples(self._ours, self._xids)

    def _look_at_disks(self) -> tuple[dict[str, int], int | None]:
        self._filesystems.first(_FIRST_LOOK_S)
        return (
            machine.free_mb(tuple(filesystem.path for filesystem in self.filesystems)),
            machine.free_for_weights_mb(self._settings.data_dir),
        )

    def available_mb(self, reserved_mb: int) -> int:
        """Memory that could be taken now; an invented machine's is what others have not reserved."""
        if self._simulated:
            return max(0, self._simulated.memory_mb - self._simulated.memory_used_mb - reserved_mb)
        return machine.memory_available_mb()

    def use(self, reserved_mb: int, cores: float) -> dict[str, Any]:
        """How busy the machine is, as fields of a sample. An invented machine is as busy as its engines, which use
        ``cores`` and reserved ``reserved_mb``."""
        if self._simulated is not None:
            used_mb = min(self._simulated.memory_mb, self._simulated.memory_used_mb + reserved_mb)
            return {
                "memory_used_mb": used_mb,
                "cpu_percent": round(min(100.0, 100 * cores / self._simulated.cores), 1),
                "load_1m": round(cores, 2),
            }
        load_1m, load_5m, load_15m = (round(load, 2) for load in os.getloadavg())
        heat = self.heat()
        return {
            "memory_used_mb": max(0, machine.memory_total_mb() - machine.memory_available_mb()),
            "cpu_percent": psutil.cpu_percent(),
            "load_1m": load_1m,
            "load_5m": load_5m,
            "load_15m": load_15m,
            "cpu_temperature_c": heat.cpu_temperature_c,
            "cpu_power_watts": heat.cpu_power_watts,
            "inlet_temperature_c": heat.inlet_temperature_c,
        }

    def registered(self, sealing_key: str, engines: tuple[EngineFound, ...]) -> MachineRegistered:
        """What the machine is, as it is told to the cluster."""
        settings, gpus = self._settings, self.gpus
        return MachineRegistered(
            at=datetime.now(UTC),
            machine_id=settings.machine_id,
            address=self.address,
            agent_version=self._version,
            sealing_key=sealing_key,
            os=self._os,
            arch=platform.machine(),
            cpu_count=self.cpu_count,
            cpu_quota=None if self._simulated else machine.cpu_quota(),
            cpu_flags=self._cpu_flags,
            memory_total_mb=self._simulated.memory_mb if self._simulated else machine.memory_total_mb(),
            labels=settings.labels,
            gpus=gpus.gpus,
            gpus_state=gpus.state,
            gpus_reason=gpus.reason,
            driver=gpus.driver,
            cuda=gpus.cuda,
            ports=self.ports,
            ports_reason=self._ports_reason(),
            imex=(self._gpus.latest() or (None, None))[1],
            features=FEATURES,
            memory_read_mb_s=self._best_rate.all_cores if self._best_rate else None,
            memory_read_one_core_mb_s=self._best_rate.one_core if self._best_rate else None,
            engines=engines,
            filesystems=self.filesystems,
            simulated=self.simulated,
            nvlink_stated=self._simulated is not None
            and all(group.nvlink is not None for group in self._simulated.gpus),
            problems=self._problems(gpus),
        )

    def _ports_reason(self) -> str:
        latest = self._ports.latest()
        return latest[1] if latest is not None else "the network adapters did not answer"

    def _problems(self, gpus: Gpus) -> tuple[str, ...]:
        cpu = () if self._simulated else hardware.cpu_problems(platform.machine(), self._cpu_flags)
        return (*cpu, *gpus.problems, *link_problems(gpus.gpus))


def link_problems(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Cards that are linked slower, or may draw less, than they could, a sentence for each."""
    cards = {gpu.pci_bus_id or gpu.uuid: gpu for gpu in gpus}
    slower = [(gpu, why) for gpu in cards.values() for why in (shortfall(gpu.pcie), power_shortfall(gpu)) if why]
    return tuple(f"{label(gpu)} is {why}" for gpu, why in slower)


def _invented(settings: NodeAgentSettings) -> Invented | None:
    if settings.simulated is None:
        return None
    # Only where it is asked for: it needs the NVML package's structs.
    from services.nodeagent.simulation.machine import Invented

    return Invented(settings.machine_id, settings.simulated)
