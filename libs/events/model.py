"""What should be served: the catalog."""

from __future__ import annotations

from typing import Literal

from .contract import Event, Value, registered
from .explanation import Explanation

EngineName = Literal["llamacpp", "vllm", "sglang", "trtllm", "comfyui", "sim"]


class Profile(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to run a model."""

    name: str
    engine: EngineName
    gpu_class: str | None = None
    """None: it runs on the CPU."""
    gpus_per_node: int = 0
    memory_mb: int | None = None
    """Main memory to reserve; a CPU profile must state it."""
    cores: int = 1
    """CPU cores to reserve."""
    parallel: int = 4
    """Requests the engine works on at once."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    """Labels a node must carry."""
    priority: int = 0
    """The fitting profile of the highest priority is taken."""
    startup_timeout_s: int = 1200
    """From the last progress, not from the start."""


class Scaling(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    min: int = 1
    max: int | None = None
    """None: the same as ``min``."""


class ModelSpec(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as an administrator declares it."""

    name: str
    aliases: tuple[str, ...] = ()
    description: str = ""
    source: str | None = None
    """Weights: ``library:NAME`` or ``library:NAME@VERSION``. None only for engines that need none (``sim``)."""
    context_length: int = 4096
    max_output_tokens: int | None = None
    capabilities: tuple[str, ...] = ("chat", "completions")
    profiles: tuple[Profile, ...]
    scaling: Scaling = Scaling()


class ModelEvent(Event, frozen=True, kw_only=True, tag="model.v0"):
    ids = ("model",)
    model: str


@registered
class ModelDefined(ModelEvent, frozen=True, kw_only=True, tag="model.defined.v1"):
    """A model was added or its definition replaced as a whole."""

    spec: ModelSpec
    fingerprint: str
    """Of what decides how it runs: a replica with another one is replaced. Scaling is not part of it."""


@registered
class ModelScaled(ModelEvent, frozen=True, kw_only=True, tag="model.scaled.v1"):
    scaling: Scaling


@registered
class ModelRemoved(ModelEvent, frozen=True, kw_only=True, tag="model.removed.v1"):
    """Its replicas are stopped next."""


@registered
class ModelUnplaced(ModelEvent, frozen=True, kw_only=True, tag="model.unplaced.v1"):
    """A replica is wanted and nothing fits; said again only when the reasons change."""

    explanation: Explanation


@registered
class ModelParked(ModelEvent, frozen=True, kw_only=True, tag="model.parked.v1"):
    """Its replicas failed too often in a row: no more starts until it is redefined or restarted by hand."""

    failures: int
    reason: str


@registered
class ModelUnparked(ModelEvent, frozen=True, kw_only=True, tag="model.unparked.v1"):
    """Starts are tried again."""
