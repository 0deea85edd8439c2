"""What an engine is to the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from libs.engines import ENGINES, traits_of
from libs.events.machine import FabricPort, Gpu
from libs.events.views import ShardWanted
from libs.tuning import argument_problems, environment_problems, option_problems
from services.nodeagent.core.shard.engine_metrics import MetricNames, Readings, read
from services.nodeagent.core.shard.offload import Offload


class Lora(msgspec.Struct, frozen=True, kw_only=True):
    """A fine-tuning on this machine, in the format of PEFT."""

    name: str
    folder: str
    rank: int


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one shard is to run."""

    host: str
    port: int
    weights: str | None
    """The file (or folder) its weights are in."""
    cpu_count: int
    interface: str | None = None
    """The network interface that holds ``host``."""
    ports: tuple[FabricPort, ...] = ()
    """Of this machine's network adapters."""
    loras: tuple[Lora, ...] = ()


class Engine(Protocol):
    """One engine as it can be started on this machine."""

    @property
    def name(self) -> str:
        """Its name in the table of engines."""

    @property
    def health_path(self) -> str:
        """The path of the page that says whether it is ready."""

    @property
    def metrics_path(self) -> str | None:
        """None: it tells no figures."""

    def readings(self, page: str) -> Readings:
        """The figures of its metrics page."""

    @property
    def generates(self) -> bool:
        """Whether one token can be asked of it over the OpenAI API before it is called ready."""

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        """Whether CPU time it uses shows that it works, where its counters may stand still for minutes."""

    def refusal(self, wanted: ShardWanted, gpus: Mapping[str, Gpu]) -> str | None:
        """Why this engine cannot run ``wanted`` on these GPUs (by UUID), or None."""

    def entry(self, paths: Sequence[str]) -> str | None:
        """Which of the model's files the engine is pointed at; ``""`` is their folder, None: none of them will do."""

    def command(self, wanted: ShardWanted, place: Place) -> list[str]:
        """The command line."""

    def environment(self, wanted: ShardWanted, place: Place) -> dict[str, str]:
        """What the engine needs in its environment besides what all engines get."""

    def offload(self, output: Sequence[str]) -> Offload:
        """Where it computes, as it printed while it loaded."""


class Prometheus:
    """Part of an engine whose figures are a Prometheus page at ``/metrics``."""

    @property
    def metrics(self) -> MetricNames:
        """What it calls the figures that are read."""
        raise NotImplementedError

    @property
    def health_path(self) -> str:
        """Where vLLM, SGLang and llama.cpp all have it."""
        return "/health"

    @property
    def metrics_path(self) -> str | None:
        """Where Prometheus looks by itself."""
        return "/metrics"

    def readings(self, page: str) -> Readings:
        """The figures it has under the names in ``metrics``; those that are not there are unknown."""
        return read(page, self.metrics)

    @property
    def generates(self) -> bool:
        """It generates text."""
        return True

    def environment(self, wanted: ShardWanted, place: Place) -> dict[str, str]:
        """None: what every engine gets is enough."""
        return {}

    def offload(self, output: Sequence[str]) -> Offload:
        """Nothing: its output does not tell."""
        return Offload()


def cores_for(wanted: ShardWanted, cpu_count: int) -> int:
    """Threads a shard computes with: what was reserved for it, else half the machine."""
    return wanted.cores or max(1, cpu_count // 2)


def width(wanted: ShardWanted) -> int:
    """Its tensor width."""
    return wanted.tp or max(1, len(wanted.devices))


def stages(wanted: ShardWanted) -> int:
    """Its pipeline stages."""
    return wanted.pp or wanted.ranks


def unsuited(wanted: ShardWanted) -> str | None:
    """Why an engine of these traits does not run it, whatever the weights and the GPUs, or None."""
    engine = traits_of(wanted.engine)
    if engine.needs_gpu and not wanted.devices:
        return f"{engine.called} runs on GPUs only"
    if wanted.ranks > 1 and not engine.spans_nodes:
        return f"{engine.called} runs on one machine, and this is one of {wanted.ranks} ranks"
    if wanted.loras and not engine.loras:
        lora, others = wanted.loras[0].name, [name for name, other in ENGINES.items() if other.loras]
        able = " or ".join(ENGINES[name].called for name in others if not ENGINES[name].simulated)
        return f"{engine.called} does not answer under an adapter's own name: leave out {lora}, or run it with {able}"
    return unsafe(wanted)


def unsafe(wanted: ShardWanted) -> str | None:
    """Why a profile's arguments or environment are refused, naming the first, or None."""
    for why in argument_problems(wanted.engine, wanted.args).values():
        return why
    for name, why in environment_problems(wanted.engine, wanted.env).items():
        return f"the environment variable {name} may not be set in a profile: {why}"
    return None


def misunderstood(wanted: ShardWanted) -> str | None:
    """Why arguments are not understood by an engine of ours, naming the first, or None."""
    return next(iter(option_problems(wanted.engine, wanted.args).values()), None)


def shape(wanted: ShardWanted, gpus: Mapping[str, Gpu], *, least_capability: float) -> str | None:
    """Why a model cannot be spread so over these GPUs, or None. For engines that compute in tensor parallel."""
    called = traits_of(wanted.engine).called
    known = [gpus[uuid] for uuid in wanted.devices if uuid in gpus]
    if any(gpu.mig is not None for gpu in known) and (len(wanted.devices) > 1 or wanted.ranks > 1):
        return f"{called} runs on exactly one MIG instance: a process opens one, and they have no NVLink between them"
    if wanted.devices:
        total = len(wanted.devices) * wanted.ranks
        if width(wanted) * stages(wanted) != total:
            return (
                f"{called} was given {total} GPUs ({len(wanted.devices)} on each of {wanted.ranks} machines) for "
                f"tensor width {width(wanted)} x {stages(wanted)} pipeline stages = {width(wanted) * stages(wanted)}"
            )
    old = too_old(known, least_capability)
    if old is not None:
        return f"{called} needs compute capability {least_capability} and {old.name} has {old.compute_capability}"
    if wanted.ranks > 1 and not (wanted.leader_address and wanted.leader_port):
        return f"{called} over {wanted.ranks} machines needs the leader's address and port, and none was given"
    return None


def too_old(gpus: Iterable[Gpu], least: float) -> Gpu | None:
    """The first GPU below a compute capability; one that does not tell is taken."""
    return next((gpu for gpu in gpus if gpu.compute_capability and float(gpu.compute_capability) < least), None)


def folder_of_safetensors(wanted: ShardWanted) -> str | None:
    """Why the weights are no folder such engines load, or None."""
    called = traits_of(wanted.engine).called
    if wanted.weights is None:
        return f"{called} needs weights and the model names none (source: library:NAME)"
    paths = [file.path for file in wanted.weights.files]
    if "config.json" not in paths:
        return f"{called} needs a model's folder with its config.json, and {wanted.weights.name} has none"
    if not any(path.endswith(".safetensors") for path in paths) and not wanted.allow_pickle:
        return f"{called} needs safetensors files, and {wanted.weights.name} has no safetensors"
    return None


def unfit_loras(wanted: ShardWanted) -> str | None:
    """Why the fine-tunings asked for cannot be loaded, or None. For engines that load PEFT's folders."""
    for lora in wanted.loras:
        paths = [file.path for file in lora.weights.files]
        for needed in ("adapter_config.json", "adapter_model.safetensors"):
            if needed not in paths:
                return f"the adapter {lora.name} ({lora.weights.name}) has no {needed}"
    return None
