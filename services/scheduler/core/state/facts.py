"""What the log says of models, replicas, machines and the library: what the hash of a state is taken over."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from libs.events.explanation import Explanation
from libs.events.library import LibraryVersion
from libs.events.machine import MachineRegistered
from libs.events.model import ModelSpec, Profile
from libs.events.replica import ShardPlacement
from libs.events.sources import kept_as
from libs.events.views import ErrandWanted

ShardPhase = Literal["wanted", "starting", "loading", "ready", "failed", "stopped"]
ReplicaPhase = Literal["placed", "ready", "draining", "stopping", "failed", "lost"]
NodeMode = Literal["open", "cordoned", "drained", "lent"]

ENDED: frozenset[ShardPhase] = frozenset({"failed", "stopped"})
LEAVING: frozenset[ReplicaPhase] = frozenset({"draining", "stopping", "failed"})
STARTING: frozenset[ReplicaPhase] = frozenset({"placed"})

ERRANDS = "errands"
"""Among an agent's features: it does what it is asked to do once, and says which weights it holds."""


# Defaults are left out of what is hashed: a field added later does not change the hash of an old log.


class Shard(msgspec.Struct, omit_defaults=True):
    """The part of a replica on one machine: what it holds, and what the machine last said of it."""

    placement: ShardPlacement
    phase: ShardPhase
    since: datetime
    position: int
    """Sequence of the event that brought it into this phase."""
    url: str = ""
    reason: str = ""
    """Why it failed or was stopped."""
    failed_in: str = ""

    @property
    def ended(self) -> bool:
        """Nothing of it runs, as its machine said."""
        return self.phase in ENDED


class Replica(msgspec.Struct, omit_defaults=True):
    """One running copy of a model, on one machine or several."""

    replica_id: str
    model: str
    profile: Profile
    """As it was when the replica was placed: a definition may change under a running replica."""
    context_length: int
    fingerprint: str
    weights: str
    """``NAME@VERSION``, or empty."""
    phase: ReplicaPhase
    since: datetime
    position: int
    """Sequence of the last event about it."""
    placed_at: datetime
    placed: int
    """Sequence of its placing: replicas are older or younger by it."""
    shards: dict[str, Shard]
    explanation: Explanation
    ready_at: datetime | None = None
    url: str = ""
    reason: str = ""
    nvlink_domain: str | None = None
    fabric: str | None = None
    leader_port: int = 0
    allow_pickle: bool = False
    loras: dict[str, str] = msgspec.field(default_factory=dict, name="adapters")
    """Fine-tunings it loads: name to ``NAME@VERSION``."""
    measured: bool = False
    """How fast it answers was told."""

    @property
    def machines(self) -> tuple[str, ...]:
        """Ids, the leading one first."""
        return tuple(shard.placement.machine_id for shard in self.shards.values())

    @property
    def whole(self) -> bool:
        """Every part of it is ready, as far as was heard."""
        return all(shard.phase == "ready" for shard in self.shards.values())

    @property
    def may_serve(self) -> bool:
        """It is lost, and had served: whoever reaches its machine may still get an answer."""
        return self.phase == "lost" and self.ready_at is not None and self.whole

    @property
    def gone(self) -> bool:
        """Nothing of it is left anywhere."""
        return all(shard.ended for shard in self.shards.values())


class Trial(msgspec.Struct, omit_defaults=True):
    """A changed definition that runs beside the one in force until it is judged."""

    spec: ModelSpec
    fingerprint: str
    since: datetime
    position: int


class Model(msgspec.Struct, omit_defaults=True):
    """A model as it is wanted, and how its starts went."""

    name: str
    spec: ModelSpec
    """Its scaling is the one in force."""
    fingerprint: str
    born: int
    """Sequence of its first definition."""
    created_at: datetime
    touched: int
    """Sequence of the last event that may change what is to be done about it."""
    removed: bool = False
    placings: int = 0
    """Replicas ever placed: the next one's id is made from it."""
    failures: int = 0
    """In a row: replicas placed before the last one failed say nothing new and are not counted."""
    failed_at: datetime | None = None
    failed_position: int = 0
    """Of the last failure counted."""
    last_failure: str = ""
    failed_on: dict[str, int] = {}
    """Machine id to failures there since it last ran there."""
    retry_at: datetime | None = None
    parked: str | None = None
    """Why no more starts are tried."""
    unplaced: Explanation | None = None
    stopped: str | None = None
    """Why an administrator stopped it; None: it is not stopped."""
    scaled: int | None = None
    """What autoscaling last decided on; None: it has not yet."""
    scaled_at: datetime | None = None
    awake: bool = False
    """An on-demand model is wanted."""
    asked_at: datetime | None = None
    """When it was woken, or asked for again."""
    restarted: int = 0
    """Sequence of the last restart by hand: older replicas are replaced."""
    in_place: bool = False
    """That restart stops each before its successor starts."""
    trial: Trial | None = None

    @property
    def declared(self) -> ModelSpec:
        """What an administrator last asked for, on trial or in force."""
        return self.trial.spec if self.trial is not None else self.spec


class Orphan(msgspec.Struct, omit_defaults=True):
    """A shard a machine reports and nobody asked for. Its room is unknown, so nothing new goes to that machine."""

    replica_id: str
    model: str
    since: datetime
    position: int


class Machine(msgspec.Struct, omit_defaults=True):
    """A machine: what it is, whether it is there, and what it may be given."""

    facts: MachineRegistered
    registered: int
    """Sequence of these facts."""
    position: int
    """Sequence of the last ``node`` event about it."""
    here_since: datetime
    """When it registered first, or was heard again after it was lost."""
    joined: bool = False
    lost_at: datetime | None = None
    mode: NodeMode = "open"
    reason: str = ""
    """Why it is cordoned or drained."""
    force: bool = False
    """Drained of what has nowhere to go as well."""
    weights: list[str] = []
    """``NAME@VERSION`` of what has run here: likely in its cache."""
    orphans: dict[str, Orphan] = {}
    errands: list[ErrandWanted] = []
    """Those it has not ended yet, the oldest first."""

    @property
    def lost(self) -> bool:
        """Nothing is heard of it."""
        return self.lost_at is not None

    def holds(self, weights: str) -> bool:
        """Whether a version is on it: as its agent says, or, of an agent that does not say, what has run there."""
        if ERRANDS in self.facts.features:
            return any(held.weights == kept_as(weights) for held in self.facts.weights)
        return weights in self.weights


class Pause(msgspec.Struct, omit_defaults=True):
    """Nothing is placed in the place of what runs on silent machines."""

    at: datetime
    position: int
    silent: int
    of: int


class Facts(msgspec.Struct, omit_defaults=True):
    """All that the log says and nothing derived: what the state hash is taken over."""

    models: dict[str, Model] = {}
    replicas: dict[str, Replica] = {}
    machines: dict[str, Machine] = {}
    versions: dict[str, LibraryVersion] = {}
    """By ``NAME@VERSION``; a removed one stays for as long as a replica runs from it."""
    library: dict[str, list[str]] = {}
    """Name to the versions that can be had, the newest last."""
    mirrors: dict[str, str] = {}
    """Mirror id to base URL."""
    stopped: str | None = None
    """Why the whole system is stopped; None: it is not."""
    rack_watts: dict[str, int] = {}
    """What the GPUs of a rack may draw together, where that is limited."""
    paused: Pause | None = None
    """Many machines fell silent together; None: they did not, or it is over."""
