"""The life of a replica: one placing, one run, one end. What replaces it is another replica."""

from __future__ import annotations

from datetime import datetime

import msgspec

from .contract import Event, Value, registered
from .explanation import Explanation


class ShardPlacement(Value, frozen=True, kw_only=True):
    """What one shard holds on one machine for as long as the replica lives."""

    shard_id: str
    machine_id: str
    devices: tuple[str, ...] = ()
    """GPU UUIDs."""
    cores: int = 0
    memory_mb: int = 0
    nics: tuple[str, ...] = msgspec.field(default=(), name="adapters")
    """Network adapters through which it reaches the other shards."""


class ReplicaEvent(Event, frozen=True, kw_only=True, tag="replica.v0"):
    ids = ("replica_id",)
    replica_id: str
    model: str


@registered
class ReplicaPlaced(ReplicaEvent, frozen=True, kw_only=True, tag="replica.placed.v1"):
    """Room is taken for it from now on, and its nodes are told to start it."""

    profile: str
    fingerprint: str
    shards: tuple[ShardPlacement, ...]
    explanation: Explanation
    reason: str = ""
    """Why one more was wanted."""
    weights: str = ""
    """``NAME@VERSION`` in the library, as it was when the replica was placed; empty: it needs none."""
    nvlink_domain: str | None = None
    """Of a replica over several machines: the NVLink domain they share."""
    fabric: str | None = None
    """Or the physical network they share."""
    leader_port: int = 0
    """Where its shards find each other on the first one's machine; 0: there is one shard."""
    loras: dict[str, str] = msgspec.field(default_factory=dict, name="adapters")
    """Fine-tunings it loads beside its weights: name to ``NAME@VERSION``, as it was when the replica was placed."""


@registered
class ReplicaReady(ReplicaEvent, frozen=True, kw_only=True, tag="replica.ready.v1"):
    """Every shard is ready: gateways may send to it."""

    url: str


@registered
class ReplicaMeasured(ReplicaEvent, frozen=True, kw_only=True, tag="replica.measured.v1"):
    """How fast it answers one request, against what was estimated from its weights and hardware. Said once of each."""

    tokens_per_s: float
    """Of one request, the ninth of ten by speed, from its first token to its last."""
    estimated_tokens_per_s: float
    requests: int
    """That this was measured on: streamed, with 32 tokens or more."""


@registered
class ReplicaFailed(ReplicaEvent, frozen=True, kw_only=True, tag="replica.failed.v1"):
    """One of its shards failed; the rest is stopped. It holds its room until every shard is gone."""

    reason: str
    failures: int
    """Of this model in a row."""
    retry_at: datetime | None = None
    """When another may be placed; None: at once."""


@registered
class ReplicaDraining(ReplicaEvent, frozen=True, kw_only=True, tag="replica.draining.v1"):
    """No new requests; it is stopped when those in flight are done or the grace is over."""

    reason: str


@registered
class ReplicaStopping(ReplicaEvent, frozen=True, kw_only=True, tag="replica.stopping.v1"):
    """The grace for requests in flight is over: what is left of it is stopped now."""

    reason: str


@registered
class ReplicaLost(ReplicaEvent, frozen=True, kw_only=True, tag="replica.lost.v1"):
    """A node it ran on is lost: another is placed. Until that one serves, gateways may go on asking this one's engine.
    If the node comes back with it, it is adopted, or stopped when others serve in its place."""

    machine_id: str


@registered
class ReplicaRecovered(ReplicaEvent, frozen=True, kw_only=True, tag="replica.recovered.v1"):
    """Its node came back with its engine still ready and the replica is still wanted: it serves again."""

    url: str


@registered
class ReplicaStopped(ReplicaEvent, frozen=True, kw_only=True, tag="replica.stopped.v1"):
    """Nothing of it is left; its room is free."""

    reason: str = ""
