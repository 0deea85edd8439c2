"""What the key-value buckets hold. Each bucket has one writer and can be rebuilt from the log."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from .budget import LevelBudget
from .contract import Value
from .library import WeightFile
from .machine import WeightsHere
from .node import Errand
from .tenancy import Price, Role


class Endpoint(Value, frozen=True, kw_only=True):
    replica_id: str
    url: str
    """Base URL without ``/v1``."""
    machine_id: str
    served_name: str
    """What the engine calls the model."""
    generation: int = 1
    """With the replica id and the fleet secret it gives the engine's API key."""
    parallel: int = 4
    draining: bool = False
    weight: int = 1
    """Share of the requests, against the other endpoints."""
    canary: bool = False
    """It runs a definition on trial: it gets the route's ``canary_percent``, and more only where no other answers."""
    loras: tuple[str, ...] = msgspec.field(default=(), name="adapters")
    """Fine-tunings it has loaded, which are asked for by their own names."""
    engine: str = ""
    """Which program it is, as the profile names it."""
    silent: bool = False
    """Nothing is heard of a machine it runs on. Its engine may serve all the same: whether it answers decides."""


class Route(Value, frozen=True, kw_only=True):
    """Bucket ``routes``, key: model. Written by the scheduler. A model with no endpoint stays listed."""

    model: str
    aliases: tuple[str, ...] = ()
    context_length: int
    max_output_tokens: int | None = None
    capabilities: tuple[str, ...] = ()
    created_at: datetime
    endpoints: tuple[Endpoint, ...] = ()
    position: int = 0
    """Sequence in EVENTS this was derived from."""
    on_demand: bool = False
    """With no endpoint: ask the scheduler to wake it (``cmd.scheduler.wake_model``) and let the request wait."""
    stopped: Literal["system_stopped", "model_stopped"] | None = None
    """An administrator stopped everything, or this model: refuse its requests with 503 and this code."""
    stopped_reason: str = ""
    canary_percent: int = 0
    fallbacks: tuple[str, ...] = ()
    """Models that answer in its place when it cannot, in this order."""
    loras: tuple[str, ...] = msgspec.field(default=(), name="adapters")
    """Names of its fine-tunings: each is asked for like a model, and answered by the endpoints that have loaded it."""


class WeightsWanted(Value, frozen=True, kw_only=True):
    name: str
    version: str
    files: tuple[WeightFile, ...]
    mirrors: tuple[str, ...]
    """Base URLs, any of which serves it."""
    source: str = ""
    """A source the machine looks into by itself, as it is in the model's definition; which files there are is not known
    here. Empty: it is the library's."""


class LoraWanted(Value, frozen=True, kw_only=True):
    """A fine-tuning that an engine loads beside its weights."""

    name: str
    """What requests for it name."""
    weights: WeightsWanted


class ShardWanted(Value, frozen=True, kw_only=True):
    """What a node needs to know to run one shard."""

    shard_id: str
    replica_id: str
    model: str
    served_name: str
    profile: str
    engine: str
    generation: int = 1
    devices: tuple[str, ...] = ()
    cores: int = 0
    memory_mb: int = 0
    context_length: int = 4096
    parallel: int = 4
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    startup_timeout_s: int = 1200
    weights: WeightsWanted | None = None
    sealed_key: str | None = None
    """The engine's API key, sealed to the machine's public key (hex)."""
    draining: bool = False
    rank: int = 0
    """Of this shard in its replica. Rank 0 leads: it answers requests, the others compute."""
    ranks: int = 1
    """Shards the replica consists of, one a machine."""
    leader_address: str = ""
    """Where the ranks find each other; needed when there are several."""
    leader_port: int = 0
    nics: tuple[str, ...] = msgspec.field(default=(), name="adapters")
    """Network adapters of the fabric the ranks share; no others may be used."""
    nvlink_domain: str | None = None
    """The NVLink domain its ranks were placed in."""
    tp: int | None = None
    """Tensor width; None: the number of its devices."""
    pp: int | None = None
    """Pipeline stages; None: the number of ranks."""
    allow_pickle: bool = False
    """Weights in pickle formats, which run code when they are loaded, are allowed for this model."""
    loras: tuple[LoraWanted, ...] = ()


class ErrandWanted(Value, frozen=True, kw_only=True):
    """An errand that has not ended yet. It stands here until the machine says how it ended."""

    number: int
    """Sequence in EVENTS of its giving."""
    errand: Errand


class Desired(Value, frozen=True, kw_only=True):
    """Bucket ``desired``, key: machine id. Written by the scheduler: the whole of what should run there."""

    machine_id: str
    term: int = 0
    """Of the scheduler that wrote it; see ``Elected.term``."""
    generation: int
    """Sequence in EVENTS this was derived from. An older one of a term never replaces a newer one, nor one of an older
    term one of a newer."""
    shards: tuple[ShardWanted, ...] = ()
    errands: tuple[ErrandWanted, ...] = ()
    """In the order in which they were given."""


class NodeView(Value, frozen=True, kw_only=True):
    """Bucket ``nodes``, key: machine id. Written by the scheduler, for people and dashboards."""

    machine_id: str
    state: str
    address: str
    cpu_count: int
    memory_total_mb: int
    gpus: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    cores_free: int = 0
    memory_free_mb: int = 0
    shards: tuple[str, ...] = ()
    weights: tuple[WeightsHere, ...] = ()
    """Versions it holds."""
    errands: tuple[ErrandWanted, ...] = ()
    """What it was asked to do and has not ended."""
    changed_settings: dict[str, str] = {}
    """Of its agent, by an operator; each value as JSON."""
    problems: tuple[str, ...] = ()
    """What of it is worse than it should be, or keeps a GPU out of placement (``GPU 3: …``), as sentences."""
    reason: str = ""
    """Why it is in its state, and while it is drained what is left there and why."""
    gpus_free: tuple[int, ...] = ()
    """Indexes of those that new work may go to."""
    gpu_watts: int = 0
    """What its GPUs that hold replicas may draw."""


class ReplicaView(Value, frozen=True, kw_only=True):
    replica_id: str
    profile: str
    state: str
    machines: tuple[str, ...]
    url: str | None = None
    reason: str = ""
    progress: str = ""
    """How far its start is, as a sentence part: ``fetching 1.2 of 4.8 GB on gpu-07``. Only in answers, never in the
    bucket: what moves every second is in no view."""


class ModelView(Value, frozen=True, kw_only=True):
    """Bucket ``models``, key: model. Written by the scheduler."""

    model: str
    wanted: int
    ready: int
    state: str
    fingerprint: str
    reason: str = ""
    replicas: tuple[ReplicaView, ...] = ()


class KeyView(Value, frozen=True, kw_only=True):
    """Bucket ``keys``, key: SHA-256 of the key (hex). Written by accounting: the effective result of the tree."""

    key_id: str
    project: str
    roles: tuple[Role, ...] = ("client",)
    models: tuple[str, ...] | None = None
    """None: all."""
    rpm: int | None = None
    tpm: int | None = None
    project_rpm: int | None = None
    project_tpm: int | None = None
    policies: tuple[str, ...] = ()
    expires_at: datetime | None = None
    revoked: bool = False
    position: int = 0
    budgets: tuple[LevelBudget, ...] = ()
    """Of the key and of every level above it."""


class PriceView(Value, frozen=True, kw_only=True):
    """Bucket ``prices``, key: model, or ``*`` for every model without one of its own. Written by accounting."""

    price: Price
    version: int
    """Sequence of its event in EVENTS."""


class Spend(Value, frozen=True, kw_only=True):
    """Bucket ``spend``, key: account. Written by accounting from PostgreSQL."""

    key_id: str
    """The account: a key's id, ``org/team/project``, ``org/team/*`` or ``org/*``."""
    period: str
    """``2026-11``: the UTC month the counts are of."""
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost_micros: int
    ledger: int = 0
    """Sequence in USAGE: every request at or before it is counted in this."""
    epoch: str = ""
    """Of the history of USAGE that is a sequence of; a later one sorts behind an earlier one."""
    spent_micros: dict[str, int] = {}
    """What was spent in each period that holds now: ``2026-11-29``, ``2026-W48``, ``2026-11``, ``total``."""
    counted: int = 0
    """Requests of the account in the whole ledger. It rises with every one that is added: the newer of two entries
    has more."""


class LibraryEntry(Value, frozen=True, kw_only=True):
    """Bucket ``library``, key: name. Written by the mirror."""

    name: str
    versions: dict[str, tuple[WeightFile, ...]]
    latest: str
    mirrors: tuple[str, ...] = ()
    source: str = ""
    """Where the latest version came from."""
    licence: str = ""
    """Of the latest version."""
