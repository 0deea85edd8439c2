"""What this machine is: facts for ``machine.registered``."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import platform
import sys
from datetime import UTC, datetime

from libs.events.machine import EngineFound, Filesystem, Gpu, GpuSample, MachineRegistered

from .adapters import machine
from .adapters.nvml import Gpus, Nvml
from .background import Background
from .core import hardware
from .core.engines import Engine, LlamaCpp, Sim
from .settings import NodeAgentSettings, SimulatedMachine

log = logging.getLogger(__name__)

_LOOK_S = 60.0
"""Hardware changes when people touch it."""

_DISKS_S = 10.0
_STALE_S = 60.0
"""An older measurement says nothing about now."""

_FIRST_LOOK_S = 10.0
"""A driver that answers, answers within this on a machine with eight GPUs."""

_PROBE_S = 30.0
"""Loading an engine's libraries for the first time reads gigabytes from a cold disk."""


def agent_version() -> str:
    return importlib.metadata.version("llmgw")


class Hardware:
    """The machine under this agent: the real one, or one the settings invent."""

    def __init__(self, settings: NodeAgentSettings) -> None:
        self._settings = settings
        self._simulated = settings.simulated
        self._nvml = Nvml(settings.data_dir / "gpus.json")
        self._ours: frozenset[int] = frozenset()
        self._gpus = Background("the GPUs", self._look_at_gpus, _LOOK_S)
        self._filesystems = Background("the filesystems", lambda: machine.filesystems(settings.data_dir), _LOOK_S)
        self._disks = Background("free disk space", self._look_at_disks, _DISKS_S)
        self._gpu_samples = Background(
            "the GPUs' state", lambda: self._nvml.samples(self._ours), settings.sample_every_s
        )
        self.address = settings.address or machine.address_towards(settings.nats_url)

    async def start(self) -> None:
        """Begin to look, and wait for the first answers unless they take too long."""
        for one in (self._gpus, self._filesystems, self._disks, self._gpu_samples):
            one.start()
        both = (self._gpus, self._filesystems)
        await asyncio.gather(*(asyncio.to_thread(one.first, _FIRST_LOOK_S) for one in both))

    def stop(self) -> None:
        for one in (self._gpus, self._filesystems, self._disks, self._gpu_samples):
            one.stop()

    @property
    def simulated(self) -> bool:
        return self._simulated is not None

    @property
    def cpu_count(self) -> int:
        return self._simulated.cores if self._simulated else machine.cpu_count()

    @property
    def gpus(self) -> Gpus:
        found = self._gpus.latest()
        return self._nvml.last_known("the NVIDIA driver does not answer") if found is None else found

    @property
    def filesystems(self) -> tuple[Filesystem, ...]:
        return self._filesystems.latest() or ()

    def disk_free_mb(self) -> dict[str, int]:
        """Free space by filesystem, as far as it was read within the last minute."""
        return self._disks.latest(_STALE_S) or {}

    def gpu_samples(self, ours: frozenset[int]) -> tuple[GpuSample, ...]:
        """How the GPUs are doing, as far as they said within the last minute; ``ours``: our engines' processes."""
        self._ours = ours
        return self._gpu_samples.latest(_STALE_S) or ()

    def _look_at_gpus(self) -> Gpus:
        return _invented(self._settings.machine_id, self._simulated) if self._simulated else self._nvml.look()

    def _look_at_disks(self) -> dict[str, int]:
        self._filesystems.first(_FIRST_LOOK_S)
        return machine.free_mb(tuple(one.path for one in self.filesystems))

    def available_mb(self, reserved_mb: int) -> int:
        """Memory that could be taken now; an invented machine's is what others have not reserved."""
        if self._simulated:
            return max(0, self._simulated.memory_mb - reserved_mb)
        return machine.memory_available_mb()

    def registered(self, sealing_key: str, engines: tuple[EngineFound, ...]) -> MachineRegistered:
        settings = self._settings
        flags, gpus = machine.cpu_flags(), self.gpus
        return MachineRegistered(
            at=datetime.now(UTC),
            machine_id=settings.machine_id,
            address=self.address,
            agent_version=agent_version(),
            sealing_key=sealing_key,
            os=machine.operating_system(),
            arch=platform.machine(),
            cpu_count=self.cpu_count,
            cpu_flags=flags,
            memory_total_mb=self._simulated.memory_mb if self._simulated else machine.memory_total_mb(),
            labels=settings.labels,
            gpus=gpus.gpus,
            gpus_state=gpus.state,
            gpus_reason=gpus.reason,
            driver=gpus.driver,
            engines=engines,
            filesystems=self.filesystems,
            simulated=self.simulated,
            problems=() if self._simulated else hardware.cpu_problems(platform.machine(), flags),
        )


def _invented(machine_id: str, simulated: SimulatedMachine) -> Gpus:
    gpus: list[Gpu] = []
    for group in simulated.gpus:
        for _ in range(group.count):
            index = len(gpus)
            gpus.append(
                Gpu(
                    index=index,
                    uuid=f"GPU-sim-{machine_id}-{index}",
                    name=f"simulated {group.gpu_class}",
                    gpu_class=group.gpu_class,
                    memory_total_mb=group.memory_mb,
                )
            )
    if not gpus:
        return Gpus(state="absent", reason="this simulated machine has none")
    return Gpus(gpus=tuple(gpus), state="verified", driver="simulated")


async def engines(settings: NodeAgentSettings) -> dict[str, tuple[Engine, EngineFound]]:
    """The engines that can run here, each proved by loading it once in a process of its own."""
    names = [name for name in settings.engines if name == "sim" or settings.simulated is None]
    looked = await asyncio.gather(*(_LOOKS[name](settings) for name in names))
    return {name: found for name, found in zip(names, looked, strict=True) if found is not None}


async def _llamacpp(settings: NodeAgentSettings) -> tuple[Engine, EngineFound] | None:
    binary = settings.llama_server
    if binary is not None:
        # Taken at its word, not run to ask its version: such a thing may be a script that starts a server.
        found = EngineFound(engine="llamacpp", version="as set", source=str(binary))
        return LlamaCpp(python=sys.executable, binary=str(binary)), found
    launcher = [sys.executable, "-P", "-m", "services.nodeagent.engines.llamacpp_launcher", "--probe"]
    version = await _probed("llamacpp", launcher)
    if version is None:
        return None
    found = EngineFound(engine="llamacpp", version=version, source="package xllamacpp")
    return LlamaCpp(python=sys.executable), found


async def _sim(settings: NodeAgentSettings) -> tuple[Engine, EngineFound] | None:
    version = await _probed("sim", [sys.executable, "-P", "-c", _SIM_PROBE])
    if version is None:
        return None
    return Sim(python=sys.executable), EngineFound(engine="sim", version=version, source="package llmgw")


_LOOKS = {"llamacpp": _llamacpp, "sim": _sim}

_SIM_PROBE = (
    "import importlib.metadata, json, libs.testing.sim_engine; "
    "print(json.dumps({'version': importlib.metadata.version('llmgw')}))"
)


async def _probed(name: str, command: list[str]) -> str | None:
    """The version an engine reports when it is loaded, or None when it cannot be."""
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PROBE_S):
            out, complaint = await child.communicate()
    except TimeoutError:
        child.kill()
        await child.wait()
        log.warning("the engine %s was not loaded within %g s and is not offered", name, _PROBE_S)
        return None
    if child.returncode != 0:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        log.info("the engine %s is not on this machine: %s", name, " ".join(last) or f"exit {child.returncode}")
        return None
    try:
        return str(json.loads(out)["version"])
    except (ValueError, KeyError, TypeError):
        log.warning("the engine %s gave no version and is not offered", name)
        return None
