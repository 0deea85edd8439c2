"""What should be served: the catalog."""

from __future__ import annotations

from typing import Literal

import msgspec

from libs.engines import EngineName

from .contract import Event, Value, registered
from .explanation import Explanation


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
    nodes: int = 1
    """Machines one replica spans, each giving ``gpus_per_node``: on one fabric or in one NVLink domain."""
    tp: int | None = None
    """Tensor width; None: ``gpus_per_node``."""
    pp: int | None = None
    """Pipeline stages; None: ``nodes``."""
    weight: int = 1
    """Share of the requests a replica with this profile is given, against the others."""
    replicas: int | None = None
    """So many with this profile, exactly. Set on any profile, ``scaling`` is not looked at and profiles without it
    run none; set on none, each replica takes the fitting profile of the highest priority."""
    kv_events: bool = False
    """The engine tells which prefixes it keeps."""
    min_compute_capability: str | None = None
    """``8.9`` for cards that compute in FP8; vLLM keeps weights in it from ``7.5`` on."""
    min_gpu_memory_mb: int | None = None
    """Of each GPU."""


class Scaling(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    min: int = 1
    max: int | None = None
    """None: the same as ``min``."""
    on_demand: bool = False
    """Started when it is asked for, and stopped when it is idle and another needs its room. ``min`` replicas run
    while it is awake, at least one."""
    evict_after_idle_s: int = 120
    """An on-demand model keeps its room for so long after its last request."""
    min_lifetime_s: int = 300
    """And for so long after it was ready: two models that want one card do not take it from each other all the time."""
    target_waiting: int = 2
    """Requests that may wait for each replica, on average over half a minute, before another is started."""
    target_ttft_ms: int | None = None
    """Time to the first token, on average over half a minute, above which another is started; None: not looked at."""


class Licence(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    """``apache-2.0``."""
    name: str = ""
    commercial: bool | None = None
    regions: tuple[str, ...] = ()
    """Values of the node label ``region`` it may run in; empty: anywhere."""


class Adapter(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fine-tuning that is loaded beside the weights and asked for under its own name."""

    name: str
    source: str
    """``library:NAME`` or ``library:NAME@VERSION``."""


class AntiAffinity(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models whose replicas never stand beside this one's, whoever was there first."""

    models: tuple[str, ...] = ()
    """Empty: the model's own replicas keep away from each other."""
    within: Literal["node", "rack"] = "node"
    """Machines in one rack carry the same label ``rack``."""


class Canary(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a changed definition is tried before it takes the place of the running one."""

    percent: int = 10
    """Share of the model's requests that goes to it."""
    replicas: int = 1
    min_requests: int = 100
    """Finished by the replicas on trial before they are judged."""
    max_error_rate: float = 0.02
    """How much higher its share of failed requests may be than that of the running definition, 0 to 1."""
    max_ttft_ratio: float = 1.5
    """How many times as long its first token may take on average."""


class Judged(Value, frozen=True, kw_only=True):
    """What all gateways saw of one definition during a trial."""

    requests: int = 0
    failed: int = 0
    ttft_ms: float | None = None
    """Average time to the first token; None: there was none."""


class ModelSpec(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as an administrator declares it."""

    name: str
    aliases: tuple[str, ...] = ()
    description: str = ""
    source: str | None = None
    """Weights: ``library:NAME[@VERSION]``, ``file:/PATH`` on the machines that run it, or ``hf:ORG/NAME@COMMIT[:FILE]``
    of a hub. None only for engines that need none (``sim``)."""
    context_length: int = 4096
    max_output_tokens: int | None = None
    capabilities: tuple[str, ...] = ("chat", "completions")
    profiles: tuple[Profile, ...]
    scaling: Scaling = Scaling()
    priority_class: Literal["low", "normal", "high"] = "normal"
    """When room is short, replicas of a lower class make way for those of a higher one."""
    licence: Licence | None = None
    owner: str = ""
    """Who to ask about it."""
    fallbacks: tuple[str, ...] = ()
    """Models that answer in its place when it cannot, in this order."""
    loras: tuple[Adapter, ...] = msgspec.field(default=(), name="adapters")
    allow_pickle: bool = False
    """Weights in pickle formats, which run code when they are loaded, are allowed."""
    stopped: bool = False
    """Declared, and not run until it is started or scaled."""
    anti_affinity: tuple[AntiAffinity, ...] = ()
    """Looked at when a replica is placed; what runs already stays where it is."""
    canary: Canary | None = None
    """None: a changed definition takes the place of the running one at once, replica by replica."""


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


@registered
class ModelStopped(ModelEvent, frozen=True, kw_only=True, tag="model.stopped.v1"):
    """Stopped by an administrator: none is wanted until it is started or scaled. Its scaling is remembered."""

    reason: str = ""


@registered
class ModelStarted(ModelEvent, frozen=True, kw_only=True, tag="model.started.v1"):
    """As many are wanted again as before it was stopped."""


@registered
class ModelRestarted(ModelEvent, frozen=True, kw_only=True, tag="model.restarted.v1"):
    """Replicas placed before this are replaced."""

    in_place: bool = False
    """Each is stopped before its successor starts, on the room it gives back; else the successor is ready first."""
    reason: str = ""


@registered
class ModelWoken(ModelEvent, frozen=True, kw_only=True, tag="model.woken.v1"):
    """Somebody asks for an on-demand model: it is wanted now."""


@registered
class ModelSlept(ModelEvent, frozen=True, kw_only=True, tag="model.slept.v1"):
    """An on-demand model is not wanted any more."""

    reason: str
    idle_ms: int | None = None
    """Since its last request at any gateway."""
    for_model: str = ""
    """The model that needs its room; empty when nobody does."""


@registered
class ModelAutoscaled(ModelEvent, frozen=True, kw_only=True, tag="model.autoscaled.v1"):
    """Another number of replicas is wanted, between the scaling's ``min`` and ``max``, for these figures."""

    replicas: int
    before: int
    reason: str
    window_ms: int
    """What the figures are averages over."""
    waiting_per_replica: float
    busy_per_replica: float = 0.0
    """Requests in flight for each replica."""
    ttft_ms: float | None = None


@registered
class ModelPromoted(ModelEvent, frozen=True, kw_only=True, tag="model.promoted.v1"):
    """The definition on trial is the model's definition now: what runs an older one is replaced."""

    fingerprint: str
    reason: str
    trial: Judged | None = None
    stable: Judged | None = None


@registered
class ModelRolledBack(ModelEvent, frozen=True, kw_only=True, tag="model.rolled_back.v1"):
    """The definition on trial is dropped; what was running before goes on."""

    fingerprint: str
    reason: str
    trial: Judged | None = None
    stable: Judged | None = None
