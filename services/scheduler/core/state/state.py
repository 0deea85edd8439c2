"""What the scheduler holds to be true, folded from the log."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Literal

import msgspec

from libs.events import Event, state_hash
from libs.events.explanation import Explanation
from libs.events.library import LibraryVersion
from libs.events.machine import MachineRegistered
from libs.events.model import ModelSpec, Profile
from libs.events.replica import ShardPlacement
from libs.events.sources import kept_as, of_library
from libs.events.views import ErrandWanted

from .fabrics import Fabrics

ShardPhase = Literal["wanted", "starting", "loading", "ready", "failed", "stopped"]
ReplicaPhase = Literal["placed", "ready", "draining", "stopping", "failed", "lost"]
NodeMode = Literal["open", "cordoned", "drained", "lent"]

ENDED: frozenset[ShardPhase] = frozenset({"failed", "stopped"})
LEAVING: frozenset[ReplicaPhase] = frozenset({"draining", "stopping", "failed"})
STARTING: frozenset[ReplicaPhase] = frozenset({"placed"})

CHANGES_KEPT = 20_000
"""Of the order in which machines were stirred."""

ERRANDS = "errands"
"""Among an agent's features: it does what it is asked to do once, and says which weights it holds."""

RECENT = 40
"""Happenings remembered of one model, to tell its story; the log has them all."""


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
        return self.phase in ENDED


class Replica(msgspec.Struct, omit_defaults=True):
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
    adapters: dict[str, str] = {}
    """Fine-tunings it loads: name to ``NAME@VERSION``."""
    measured: bool = False
    """How fast it answers was told."""

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(shard.placement.machine_id for shard in self.shards.values())

    @property
    def whole(self) -> bool:
        """Every part of it is ready, as far as was heard."""
        return all(shard.phase == "ready" for shard in self.shards.values())

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
        return self.lost_at is not None

    def holds(self, weights: str) -> bool:
        """Whether a version is on it: as its agent says, or, of an agent that does not say, what has run there."""
        if ERRANDS in self.facts.features:
            return any(one.weights == kept_as(weights) for one in self.facts.weights)
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


class Story:
    """What happened to one model, as events; told in words only when somebody asks."""

    __slots__ = ("events",)

    def __init__(self) -> None:
        self.events: deque[tuple[int, Event]] = deque(maxlen=RECENT)


class ChangedMachines(dict[str, int]):
    """Machine id to the sequence of the last event about it or about what it runs, and in which order they came.

    Whoever read on from a place in that order (``count``) asks for what came since, and looks at nothing else.
    """

    __slots__ = ("_dropped", "_order")

    def __init__(self) -> None:
        self._order: list[str] = []
        self._dropped = 0

    def __setitem__(self, machine_id: str, position: int) -> None:
        super().__setitem__(machine_id, position)
        self.mark(machine_id)

    def drop(self, machine_id: str) -> None:
        """It is known no more."""
        self.pop(machine_id, None)
        self.mark(machine_id)

    def mark(self, machine_id: str) -> None:
        """Something about a machine changed that is no event."""
        self._order.append(machine_id)
        if len(self._order) > 2 * CHANGES_KEPT:
            self._dropped += CHANGES_KEPT
            del self._order[:CHANGES_KEPT]

    @property
    def count(self) -> int:
        return self._dropped + len(self._order)

    def since(self, count: int) -> set[str] | None:
        """Machines stirred since; None: that is too long ago to tell."""
        return set(self._order[count - self._dropped :]) if count >= self._dropped else None


class State:
    """The facts, and what is kept beside them to find things fast. Everything else here follows from the facts."""

    __slots__ = (
        "_fabrics",
        "capacity_changed",
        "changed",
        "election",
        "facts",
        "hardware_changed",
        "held",
        "leaving",
        "mirrors_changed",
        "nodes_changed",
        "of_model",
        "position",
        "starting",
        "stories",
        "term",
    )

    def __init__(self) -> None:
        self.facts = Facts()
        self.position = 0
        """Sequence of the last event folded."""
        self.election = 0
        """Sequence of the scheduler's last election."""
        self.term = 0
        """When that was, in microseconds since 1970. It rises though the log should go back and number its events
        again: what outlives that on machines is told apart by it."""
        self.of_model: dict[str, dict[str, Replica]] = {}
        self.held: dict[str, dict[str, ShardPlacement]] = {}
        """Machine id to what each shard holds there until it is known to be gone."""
        self.capacity_changed = 0
        """Sequence of the last event after which something may fit that did not fit before, or may be made to fit."""
        self.changed = ChangedMachines()
        self.nodes_changed = 0
        """Sequence of the last event about a machine itself, or about what nobody asked for on it."""
        self.mirrors_changed = 0
        """Sequence of the last event that concerns every machine: where weights are served."""
        self.stories: dict[str, Story] = {}
        self.leaving: dict[str, Replica] = {}
        """Replicas on their way out, whose room is still held."""
        self.starting: dict[str, Replica] = {}
        """Replicas that are placed and not ready yet."""
        self.hardware_changed = 0
        """Sequence of the last event that says what a machine is made of."""
        self._fabrics: tuple[int, Fabrics] | None = None

    def fabrics(self) -> Fabrics:
        """Which machines can compute together."""
        if self._fabrics is None or self._fabrics[0] != self.hardware_changed:
            facts = {machine_id: machine.facts for machine_id, machine in self.facts.machines.items()}
            self._fabrics = self.hardware_changed, Fabrics(facts)
        return self._fabrics[1]

    def hash(self) -> str:
        return state_hash(self.facts)

    def silent(self, replica: Replica) -> bool:
        """Whether nothing is heard of a machine it runs on."""
        machines = self.facts.machines
        return any((machine := machines.get(m)) is not None and machine.lost for m in replica.machines)

    def index(self, replica: Replica) -> None:
        """After its phase changed."""
        for kept, phases in ((self.leaving, LEAVING), (self.starting, STARTING)):
            if replica.phase in phases:
                kept[replica.replica_id] = replica
            else:
                kept.pop(replica.replica_id, None)

    def forget(self, replica_id: str) -> Replica | None:
        """It is gone."""
        self.leaving.pop(replica_id, None)
        self.starting.pop(replica_id, None)
        return self.facts.replicas.pop(replica_id, None)

    def forget_version(self, version: str) -> None:
        """What is known of ``NAME@VERSION`` that was removed, once nothing runs from it."""
        if version not in self.facts.versions:
            return
        name, _, number = version.partition("@")
        if number in self.facts.library.get(name, ()):
            return
        replicas = self.facts.replicas.values()
        if not any(version == one.weights or version in one.adapters.values() for one in replicas):
            del self.facts.versions[version]

    def replicas_of(self, model: str) -> list[Replica]:
        """Oldest first."""
        return list(self.of_model.get(model, {}).values())

    def forget_if_over(self, model: Model) -> None:
        """A removed model is remembered until nothing of it is left."""
        if model.removed and not self.of_model.get(model.name):
            del self.facts.models[model.name]
            self.of_model.pop(model.name, None)
            self.stories.pop(model.name, None)

    def weights_of(self, spec: ModelSpec) -> str | None:
        """What a new replica would be started from (``version_of``); empty if it needs none, None if there are none."""
        return self.version_of(spec.source) if spec.source is not None else ""

    def adapters_of(self, spec: ModelSpec) -> dict[str, str]:
        """Fine-tunings a new replica would load, as far as the library has them: name to ``NAME@VERSION``."""
        found = {adapter.name: self.version_of(adapter.source) for adapter in spec.adapters}
        return {name: version for name, version in found.items() if version is not None}

    def version_of(self, source: str) -> str | None:
        """``NAME@VERSION`` that a source means now, itself where machines find it; None: the library has none."""
        if not of_library(source):
            return source
        name, _, version = source.removeprefix("library:").partition("@")
        known = self.facts.library.get(name, ())
        if version:
            return f"{name}@{version}" if version in known else None
        return f"{name}@{known[-1]}" if known else None
