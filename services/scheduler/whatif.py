"""What would follow from a change: the real core on the log, with machines that do at once what they are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from libs.events import Command, Event
from libs.events.machine import MachineSample
from libs.events.model import ModelEvent
from libs.events.node import NodeLost
from libs.events.refusal import Refused
from libs.events.replica import ReplicaDraining, ReplicaEvent, ReplicaLost, ReplicaPlaced
from libs.events.sentences import sentence
from libs.events.shard import ShardReady, ShardStopped

from .core.commands.decide import decide
from .core.inputs.heartbeats import LOST_AFTER_MS, Heartbeat, Heartbeats
from .core.reconciler.reconcile import Reconciler
from .core.state.evolve import evolve
from .core.state.state import State
from .core.views.model_views import model_view

ROUNDS = 2_000
"""Rounds of deciding and doing after which a change is taken not to settle."""


class Move(msgspec.Struct, frozen=True):
    """One thing that would happen."""

    model: str
    what: str
    """``start``, ``stop``, or ``tell``: something a person would want to know."""
    sentence: str
    machines: tuple[str, ...] = ()


class ModelChange(msgspec.Struct, frozen=True):
    """A model before and after."""

    model: str
    ready_before: int
    ready_after: int
    wanted: int
    state: str
    reason: str = ""


class WhatIf(msgspec.Struct, frozen=True):
    """What would happen, and what models there would be then."""

    position: int
    """Sequence up to which the log was read."""
    underway: tuple[Move, ...]
    """What happens anyway: it was not finished when the log ended."""
    moves: tuple[Move, ...]
    models: tuple[ModelChange, ...]
    """Those whose number of ready replicas changes, or that would lack some."""


class Simulation:
    """A state that goes on after the log ended."""

    def __init__(self, state: State, heartbeats: Heartbeats | None, now: datetime) -> None:
        self.state = state
        self.heartbeats = heartbeats
        self.now = now
        self._leader = Reconciler()

    def append(self, event: Event) -> None:
        """Let an event happen next."""
        self.state = evolve(self.state, event, self.state.position + 1)

    def send(self, command: Command) -> None:
        """Raises Refused."""
        event = decide(self.state, command, "c-what-if", self.now)
        if event is not None:
            self.append(event)

    def lose(self, machine_id: str) -> None:
        """Raises Refused when there is no such machine."""
        if machine_id not in self.state.facts.machines:
            known = ", ".join(sorted(self.state.facts.machines)) or "none"
            raise Refused.one("machine_id", f"there is no node {machine_id!r}; there is {known}")
        if self.heartbeats is not None:
            self.heartbeats = {**self.heartbeats, machine_id: Heartbeat(silent_ms=LOST_AFTER_MS)}
        self.append(NodeLost(at=self.now, machine_id=machine_id, silent_ms=LOST_AFTER_MS, deadline_ms=LOST_AFTER_MS))

    def settle(self) -> list[Move]:
        """Let the leader decide and machines obey until nothing is left to do."""
        moves: list[Move] = []
        for _ in range(ROUNDS):
            decided = self._leader.react(self.state, self.heartbeats, self.now)
            for _, event in decided:
                moves += self._moves(event)
                self.append(event)
            if not decided and not self._obey():
                return moves
            self.now += timedelta(seconds=1)
        return [*moves, Move("", "tell", f"it does not settle within {ROUNDS} rounds")]

    def _moves(self, event: Event) -> list[Move]:
        if not isinstance(event, ModelEvent | ReplicaEvent):
            return []
        machines: tuple[str, ...] = ()
        what = "tell"
        if isinstance(event, ReplicaPlaced):
            what, machines = "start", tuple(shard.machine_id for shard in event.shards)
        elif isinstance(event, ReplicaDraining | ReplicaLost):
            replica = self.state.facts.replicas[event.replica_id]
            what, machines = "stop", replica.machines
        elif isinstance(event, ReplicaEvent):
            return []
        return [Move(event.model, what, sentence(event), machines)]

    def _obey(self) -> bool:
        """Machines that are there start and stop what they should, at once. Whether there was anything to do."""
        done = False
        for replica in list(self.state.facts.replicas.values()):
            for shard_id, shard in replica.shards.items():
                machine_id = shard.placement.machine_id
                machine = self.state.facts.machines.get(machine_id)
                if shard.ended or machine is None or machine.lost:
                    continue
                about: dict[str, Any] = {
                    "at": self.now,
                    "machine_id": machine_id,
                    "shard_id": shard_id,
                    "replica_id": replica.replica_id,
                    "model": replica.model,
                    "generation": 1,
                }
                if replica.phase == "placed" and shard.phase != "ready":
                    self.append(ShardReady(**about, pid=0, url=f"http://{machine.facts.address}", loaded_ms=0))
                    done = True
                elif replica.phase in ("draining", "stopping", "failed"):
                    self.append(ShardStopped(**about))
                    done = True
        return done

    def ready(self) -> dict[str, int]:
        """Model to how many replicas are ready."""
        return {name: sum(r.phase == "ready" for r in self.state.replicas_of(name)) for name in self.state.facts.models}


def heartbeats_of(samples: Iterable[MachineSample], now: datetime) -> Heartbeats:
    """What machines said last, as the leader would hear it now."""
    heartbeats: dict[str, Heartbeat] = {}
    for sample in samples:
        silent_ms = max(0, int((now - sample.at).total_seconds() * 1000))
        heartbeats[sample.machine_id] = Heartbeat(
            silent_ms=min(silent_ms, LOST_AFTER_MS - 1),
            sampled=silent_ms < LOST_AFTER_MS,
            shards=frozenset(shard.shard_id for shard in sample.shards),
            disk_free_mb=sample.weights_free_mb,
            foreign_mb={gpu.uuid: gpu.foreign_memory_mb for gpu in sample.gpus if gpu.foreign_memory_mb},
            foreign_holders={
                gpu.uuid: ", ".join(f"process {process.pid}" for process in gpu.foreign_processes)
                for gpu in sample.gpus
                if gpu.foreign_processes
            },
        )
    return heartbeats


def what_if(
    state: State, commands: Sequence[Command], lost: Sequence[str], samples: Iterable[MachineSample], now: datetime
) -> WhatIf:
    """What commands and the loss of machines would lead to. Raises Refused with everything wrong with a command."""
    position = state.position
    world = Simulation(state, heartbeats_of(samples, now), now)
    underway = world.settle()
    before = world.ready()
    for command in commands:
        world.send(command)
    for machine_id in lost:
        world.lose(machine_id)
    moves = world.settle()
    after = world.ready()
    models = []
    for name in sorted(before.keys() | after.keys()):
        model = world.state.facts.models.get(name)
        view = model_view(world.state, model) if model is not None else None
        wanted = view.wanted if view is not None else 0
        if before.get(name, 0) != after.get(name, 0) or after.get(name, 0) < wanted:
            models.append(
                ModelChange(
                    model=name,
                    ready_before=before.get(name, 0),
                    ready_after=after.get(name, 0),
                    wanted=wanted,
                    state=view.state if view is not None else "removed",
                    reason=view.reason if view is not None else "",
                )
            )
    return WhatIf(position, tuple(underway), tuple(moves), tuple(models))
