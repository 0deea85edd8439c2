"""The state of the scheduler: the facts of the log, and what is kept beside them to find things fast."""

from __future__ import annotations

from collections import deque

from libs.events import Event, state_hash
from libs.events.model import ModelSpec
from libs.events.replica import ShardPlacement
from libs.events.sources import of_library

from .fabrics import Fabrics
from .facts import LEAVING, STARTING, Facts, Model, Replica

CHANGES_KEPT = 20_000
"""Of the order in which machines were stirred."""

RECENT = 40
"""Happenings remembered of one model, to tell its story; the log has them all."""


class History:
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
        """How many changes there were so far; see ``since``."""
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
        "histories",
        "leaving",
        "mirrors_changed",
        "nodes_changed",
        "of_model",
        "position",
        "starting",
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
        self.histories: dict[str, History] = {}
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
        """SHA-256 (hex) of the facts: equal wherever the same log was folded."""
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
        if not any(version == replica.weights or version in replica.loras.values() for replica in replicas):
            del self.facts.versions[version]

    def replicas_of(self, model: str) -> list[Replica]:
        """Oldest first."""
        return list(self.of_model.get(model, {}).values())

    def forget_if_over(self, model: Model) -> None:
        """A removed model is remembered until nothing of it is left."""
        if model.removed and not self.of_model.get(model.name):
            del self.facts.models[model.name]
            self.of_model.pop(model.name, None)
            self.histories.pop(model.name, None)

    def weights_of(self, spec: ModelSpec) -> str | None:
        """What a new replica would be started from (``version_of``); empty if it needs none, None if there are none."""
        return self.version_of(spec.source) if spec.source is not None else ""

    def loras_of(self, spec: ModelSpec) -> dict[str, str]:
        """Fine-tunings a new replica would load, as far as the library has them: name to ``NAME@VERSION``."""
        versions = {lora.name: self.version_of(lora.source) for lora in spec.loras}
        return {name: version for name, version in versions.items() if version is not None}

    def version_of(self, source: str) -> str | None:
        """``NAME@VERSION`` that a source means now, itself where machines find it; None: the library has none."""
        if not of_library(source):
            return source
        name, _, version = source.removeprefix("library:").partition("@")
        known = self.facts.library.get(name, ())
        if version:
            return f"{name}@{version}" if version in known else None
        return f"{name}@{known[-1]}" if known else None
