"""The scheduler in one process without a clock: its core, a log in a list, and machines that answer what they are told.

A test tells a short story: machines, models, faults; ``settle`` lets time pass until nothing is to be done.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from libs.events import Command, Event
from libs.events.commands import DefineModel
from libs.events.library import LibraryVersion, MirrorServing, VersionAdded, WeightFile
from libs.events.machine import EngineFound, FabricPort, Gpu, Imex, MachineRegistered
from libs.events.model import ModelSpec, ModelUnplaced, Profile, Scaling
from libs.events.refusal import Refused
from libs.events.shard import ShardAdopted, ShardFailed, ShardLoading, ShardReady, ShardStarting, ShardStopped
from libs.events.views import ShardWanted
from services.scheduler.core.commands.decide import decide
from services.scheduler.core.inputs.heartbeats import Heartbeat
from services.scheduler.core.inputs.traffic import (
    PACES_LEAST,
    ModelUse,
    ReplicaUse,
    Traffic,
)
from services.scheduler.core.reconciler import round as one_round
from services.scheduler.core.reconciler.demand import wanted as wanted_of
from services.scheduler.core.reconciler.reconcile import Reconciler
from services.scheduler.core.state.evolve import evolve
from services.scheduler.core.state.facts import Model, Replica
from services.scheduler.core.state.state import State
from services.scheduler.core.views.desired import wanted_on
from services.scheduler.core.views.routes import route

# What gateways do changes without an event: here it is looked at all the time, so that what a leader remembers can be
# held against what one that remembers nothing decides.
one_round.RECHECK_FOR_USE = timedelta(0)

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def cpu_profile(name: str = "cpu", **fields: Any) -> Profile:
    return Profile(**({"name": name, "engine": "sim", "memory_mb": 1000, "cores": 1} | fields))


def gpu_profile(name: str = "gpu", gpus: int = 1, **fields: Any) -> Profile:
    return Profile(
        **({"name": name, "engine": "sim", "gpu_class": "h100-80g", "gpus_per_node": gpus, "cores": 0} | fields)
    )


def model_spec(name: str = "m", replicas: int = 1, *profiles: Profile, **fields: Any) -> ModelSpec:
    return ModelSpec(name=name, profiles=profiles or (cpu_profile(),), scaling=Scaling(min=replicas), **fields)


def port(network: str | None, **fields: Any) -> FabricPort:
    about = {"nic": "mlx5_0", "port": 1, "link_layer": "InfiniBand", "state": "active", "rate_gbps": 400.0}
    """On the fabric under this subnet manager."""
    return FabricPort(**about | {"network": f"sm:{network}" if network else None} | fields)


class FakeMachine:
    """Does what its desired state says: starts, becomes ready a step later, stops; or fails in a chosen way."""

    def __init__(self, world: World, machine_id: str, registered: MachineRegistered) -> None:
        self.world = world
        self.machine_id = machine_id
        self.registered = registered
        self.up = True
        """Its agent and its engines run."""
        self.connected = True
        self.busy: set[str] = set()
        """Draining shards that still have requests in flight."""
        self.stuck: set[str] = set()
        """Models whose shards stay loading."""
        self.fails: dict[str, str] = {}
        """Model to the reason its shards fail with when they load."""
        self.shards: dict[str, tuple[ShardWanted, str]] = {}
        """Shard id to what was wanted and its phase."""
        self.ended: set[str] = set()
        self.last_heard = world.now
        self.gap: tuple[datetime, datetime] | None = None
        """Its last silence of five seconds or more."""
        self.unsent: list[Event] = []
        self.said: Event | None = None
        self.slow = 1
        """It obeys and speaks of its shards every so many steps only."""
        self.lingers = False
        """Its engines take a step to die."""
        self._steps = 0

    def say(self, event: Event) -> None:
        """In order, as an agent's spool keeps it."""
        self.said = event
        if self.connected and not self.unsent:
            self.world.append(event)
        else:
            self.unsent.append(event)

    def step(self) -> None:
        if not self.up:
            return
        if self.connected:
            if self.world.now - self.last_heard >= timedelta(seconds=5):
                self.gap = self.last_heard, self.world.now
            self.last_heard = self.world.now
            unsent, self.unsent = self.unsent, []
            for event in unsent:
                self.world.append(event)
        self._steps += 1
        if self._steps % self.slow:
            return
        if self.connected:
            self._obey(wanted_on(self.world.state, self.machine_id))
        for shard_id, (wanted, phase) in list(self.shards.items()):
            self._advance(shard_id, wanted, phase)

    def _obey(self, wanted: tuple[ShardWanted, ...]) -> None:
        by_id = {shard.shard_id: shard for shard in wanted}
        for shard_id in list(self.shards):
            if shard_id not in by_id or (by_id[shard_id].draining and shard_id not in self.busy):
                wanted_before, phase = self.shards[shard_id]
                if self.lingers and phase != "stopping":
                    self.shards[shard_id] = wanted_before, "stopping"
                else:
                    self._end(shard_id, ShardStopped, reason="no longer wanted")
        self.ended &= set(by_id)
        for shard in wanted:
            if shard.shard_id not in self.shards and shard.shard_id not in self.ended and not shard.draining:
                self.shards[shard.shard_id] = (shard, "starting")
                self.say(ShardStarting(**self._about(shard), engine=shard.engine))

    def _about(self, shard: ShardWanted) -> dict[str, Any]:
        return {
            "at": self.world.now,
            "machine_id": self.machine_id,
            "shard_id": shard.shard_id,
            "replica_id": shard.replica_id,
            "model": shard.model,
            "generation": shard.generation,
        }

    def _advance(self, shard_id: str, shard: ShardWanted, phase: str) -> None:
        if phase == "starting":
            self.shards[shard_id] = (shard, "loading")
            self.say(ShardLoading(**self._about(shard), pid=1))
        elif phase == "loading":
            if shard.model in self.fails:
                self._end(shard_id, ShardFailed, phase="loading", reason=self.fails[shard.model])
            elif shard.model not in self.stuck:
                self.shards[shard_id] = (shard, "ready")
                self.say(ShardReady(**self._about(shard), pid=1, url=f"http://{self.machine_id}:1", loaded_ms=10))

    def _end(self, shard_id: str, kind: Callable[..., Event], **said: Any) -> None:
        shard, _ = self.shards.pop(shard_id)
        self.ended.add(shard_id)
        self.say(kind(**self._about(shard), **said))

    def serves(self, shard_id: str) -> bool:
        """Whether its engine answers."""
        return self.up and self.shards.get(shard_id, (None, ""))[1] == "ready"

    # faults

    def crash(self, shard_id: str) -> None:
        """The engine dies under the agent's eyes."""
        self._end(shard_id, ShardFailed, phase="ready", reason="the engine was killed", exit_code=-9)

    def say_again(self) -> None:
        """What it said last arrives a second time, late."""
        if self.said is not None and self.connected and self.up and not self.unsent:
            self.world.append(self.said)

    def restart_agent(self) -> None:
        for shard, phase in self.shards.values():
            if phase == "ready":
                self.say(ShardAdopted(**self._about(shard), pid=1, url=f"http://{self.machine_id}:1", ready=True))

    def reboot(self) -> None:
        """Everything on it dies; its agent comes back with its notes and says what is gone."""
        self.up = True
        for shard_id in list(self.shards):
            self._end(shard_id, ShardFailed, phase="ready", reason="it was gone when the agent started")

    def wipe(self) -> None:
        """Everything on it dies, its agent's notes too."""
        self.shards, self.ended, self.unsent = {}, set(), []
        self.up = True


class World:
    """A log, a leader and machines."""

    def __init__(self) -> None:
        self.now = START
        self.state = State()
        self.log: list[tuple[int, Event]] = []
        self.causes: list[str] = []
        self.machines: dict[str, FakeMachine] = {}
        self.starts_at_once = 0
        self.retire_after: timedelta | None = None
        self.reconciler = self.leader()
        self.deaf = False
        self.listening_since = self.now
        self.checks: list[Callable[[World], None]] = []
        self.heard_gateways_since = self.now
        self.uses: dict[str, ReplicaUse] = {}
        """Replica id to what gateways do with it."""
        self.used: dict[str, datetime] = {}
        self.waiting: dict[str, int] = {}
        self.placed: dict[str, int] = {}
        """Every replica that was ever placed, and the sequence of that."""
        self.failures: dict[str, tuple[int, datetime, int]] = {}
        """Model to failures one after another, and time and sequence of the last."""
        self.forgiven: dict[str, int] = {}
        """Model to the sequence of the last thing that was asked of it: what failed before does not count after."""

    def leader(self) -> Reconciler:
        """One that remembers nothing."""
        return Reconciler(self.starts_at_once, self.retire_after)

    # the log

    def append(self, event: Event, cause: str = "") -> int:
        sequence = self.log[-1][0] + 1 if self.log else 1
        self.log.append((sequence, event))
        self.causes.append(cause)
        self.state = evolve(self.state, event, sequence)
        for check in self.checks:
            check(self)
        return sequence

    def command(self, command: Command) -> Event | None:
        event = decide(self.state, command, "c-1", self.now)
        if event is not None:
            self.append(event, "c-1")
        return event

    def refused(self, command: Command) -> dict[str, str]:
        """Path to message."""
        try:
            decide(self.state, command, "c-1", self.now)
        except Refused as refused:
            return {problem.path: problem.message for problem in refused.problems}
        raise AssertionError("the command was not refused")

    def define(self, spec: ModelSpec) -> None:
        self.command(DefineModel(spec=spec))

    # the machines

    def machine(
        self,
        machine_id: str = "cpu-1",
        *,
        memory_mb: int = 8192,
        cores: int = 8,
        gpus: int | tuple[Gpu, ...] = 0,
        fabric: str | None = None,
        domain: str | None = None,
        **fields: Any,
    ) -> FakeMachine:
        """``fabric``: the physical one its adapter is on; ``domain``: the NVLink domain its GPUs have joined."""
        registered = MachineRegistered(
            **(
                {
                    "at": self.now,
                    "machine_id": machine_id,
                    "address": machine_id,
                    "agent_version": "0.1.0",
                    "sealing_key": "00" * 32,
                    "os": "linux",
                    "arch": "x86_64",
                    "cpu_count": cores,
                    "memory_total_mb": memory_mb,
                    "engines": (EngineFound(engine="sim", version="1", source="test"),),
                    "gpus": gpus
                    if isinstance(gpus, tuple)
                    else tuple(
                        Gpu(
                            index=i,
                            uuid=f"{machine_id}-gpu-{i}",
                            name="H100",
                            gpu_class="h100-80g",
                            memory_total_mb=81559,
                            nvlink_domain=domain,
                        )
                        for i in range(gpus)
                    ),
                    "gpus_state": "verified" if gpus else "absent",
                    "ports": (port(fabric),) if fabric is not None else (),
                    "imex": Imex(state="active") if domain is not None else None,
                }
                | fields
            )
        )
        fake = self.machines[machine_id] = FakeMachine(self, machine_id, registered)
        self.append(registered)
        return fake

    def weights(self, name: str, version: str, size_bytes: int = 1000) -> None:
        file = WeightFile(path="model.gguf", size_bytes=size_bytes, sha256="ab" * 32)
        added = LibraryVersion(name=name, version=version, files=(file,), source="test")
        self.append(VersionAdded(at=self.now, name=name, version=added))

    def mirror(self, mirror_id: str = "mirror-1") -> None:
        self.append(MirrorServing(at=self.now, mirror_id=mirror_id, url=f"http://{mirror_id}:9"))

    # time

    def heartbeats(self) -> dict[str, Heartbeat] | None:
        if self.deaf:
            return None
        return {
            machine_id: Heartbeat(
                silent_ms=int((self.now - max(m.last_heard, self.listening_since)).total_seconds() * 1000),
                gap_ms=self._gap_ms(m),
                sampled=m.last_heard >= self.listening_since,
                shards=frozenset(m.shards),
            )
            for machine_id, m in self.machines.items()
        }

    def _gap_ms(self, machine: FakeMachine) -> int | None:
        if machine.gap is None:
            return None
        began, ended = max(machine.gap[0], self.listening_since), machine.gap[1]
        heard = ended - began >= timedelta(seconds=5)
        return int((self.now - ended).total_seconds() * 1000) if heard else None

    def traffic(self) -> Traffic | None:
        if self.deaf:
            return None
        listening = self.now - max(self.heard_gateways_since, self.listening_since)
        models = {
            model: ModelUse(
                last_used=self.used.get(model),
                waiting=self.waiting.get(model, 0),
                waiting_short=float(self.waiting.get(model, 0)),
                waiting_long=float(self.waiting.get(model, 0)),
            )
            for model in {*self.used, *self.waiting}
        }
        paced = {replica_id for replica_id, use in self.uses.items() if use.paces >= PACES_LEAST}
        return Traffic(int(listening.total_seconds() * 1000), self.uses, models, paced)

    def use(self, model: str, in_flight: int = 0, **figures: Any) -> None:
        """Gateways do this with each replica of a model from now on. What they say is heard within a second."""
        self.now += timedelta(seconds=1)
        self.used[model] = self.now
        for replica in self.replicas(model, "ready"):
            self.uses[replica.replica_id] = ReplicaUse(
                in_flight=in_flight, busy_short=float(in_flight), busy_long=float(in_flight), **figures
            )

    def react(self, rounds: int = 100) -> list[Event]:
        """Let the leader decide until it has nothing to say."""
        said: list[Event] = []
        for _ in range(rounds):
            heartbeats = self.heartbeats()
            traffic = self.traffic()
            fresh = self.leader().react(self.state, heartbeats, self.now, traffic)
            decisions = self.reconciler.react(self.state, heartbeats, self.now, traffic)
            assert _weighty(decisions) == _weighty(fresh), "what a leader remembers may not change what it decides"
            if not decisions:
                return said
            for cause, event in decisions:
                self.append(event, cause)
                said.append(event)
        raise AssertionError(f"it does not settle: {decisions[:3]}")

    def step(self, seconds: float = 1.0) -> None:
        """Machines do what they are told, time passes, the leader decides."""
        for machine in self.machines.values():
            machine.step()
        self.now += timedelta(seconds=seconds)
        self.react()

    def settle(self, steps: int = 12) -> World:
        self.react()
        for _ in range(steps):
            self.step()
        return self

    def wait(self, seconds: float, step: float = 1.0) -> World:
        for _ in range(int(seconds / step)):
            self.step(step)
        return self

    # looking

    def model(self, name: str = "m") -> Model:
        return self.state.facts.models[name]

    def replicas(self, model: str = "m", *phases: str) -> list[Replica]:
        found = self.state.replicas_of(model)
        return [r for r in found if r.phase in phases] if phases else found

    def serving(self, model: str = "m") -> list[str]:
        """Machines whose replicas take requests."""
        endpoints = route(self.state, self.model(model)).endpoints
        return sorted(e.machine_id for e in endpoints if not e.draining)

    def events(self, kind: type[Event]) -> list[Any]:
        return [event for _, event in self.log if isinstance(event, kind)]

    def diary(self) -> list[str]:
        """Tags in order, short."""
        return [type(event).__name__ for _, event in self.log]


def _weighty(decisions: list[tuple[str, Event]]) -> list[tuple[str, Event]]:
    """Without what only tells anew why nothing fits: that is not looked at again when room only shrank."""
    return [decision for decision in decisions if not isinstance(decision[1], ModelUnplaced)]


def no_double_holding(world: World) -> None:
    """No GPU and no core is held twice, and no memory that is not there."""
    for machine_id, held in world.state.held.items():
        machine = world.state.facts.machines.get(machine_id)
        if machine is None:
            continue
        devices = [device for shard in held.values() for device in shard.devices]
        assert len(devices) == len(set(devices)), f"{machine_id}: a GPU is held twice: {sorted(devices)}"
        cores = sum(shard.cores for shard in held.values())
        assert cores <= machine.facts.cpu_count, f"{machine_id}: {cores} cores held of {machine.facts.cpu_count}"
        memory = sum(shard.memory_mb for shard in held.values())
        assert memory <= machine.facts.memory_total_mb, f"{machine_id}: {memory} MB held"


def really_free(world: World) -> None:
    """What machines really run fits them: room was never given away while somebody was still in it."""
    for machine in world.machines.values():
        devices = [device for wanted, _ in machine.shards.values() for device in wanted.devices]
        assert len(devices) == len(set(devices)), f"{machine.machine_id} runs two shards on one GPU"
        cores = sum(wanted.cores for wanted, _ in machine.shards.values())
        assert cores <= machine.registered.cpu_count, f"{machine.machine_id} runs {cores} cores' worth"


def silence_removes_nothing(world: World) -> None:
    """A route leads to an engine that serves until somebody decides otherwise or another serves in its place; what is
    not heard is marked."""
    facts = world.state.facts
    for model in facts.models.values():
        endpoints = {e.replica_id: e for e in route(world.state, model).endpoints}
        heard = 0
        for replica_id, endpoint in endpoints.items():
            lost = any(facts.machines[m].lost for m in facts.replicas[replica_id].machines)
            assert endpoint.silent == lost, f"{replica_id} is {'' if lost else 'not '}silent and not marked so"
            heard += not endpoint.silent and facts.replicas[replica_id].phase == "ready"
        least = sum(group.count for group in wanted_of(world.state, model))
        for replica in world.state.replicas_of(model.name):
            serves = all(world.machines[s.placement.machine_id].serves(i) for i, s in replica.shards.items())
            known = all(s.phase == "ready" for s in replica.shards.values()) and replica.ready_at is not None
            if heard < least and serves and known and replica.phase in ("ready", "lost"):
                assert replica.replica_id in endpoints, f"{model.name} has {heard} without {replica.replica_id}"
            if heard >= max(1, least) + (model.trial is not None) and replica.phase == "lost":
                assert replica.replica_id not in endpoints, f"{replica.replica_id} is lost, others serve in its place"


def index_follows_facts(world: World) -> None:
    """What is kept beside the facts is what the facts say."""
    held: dict[str, set[str]] = {}
    for replica in world.state.facts.replicas.values():
        for shard_id, shard in replica.shards.items():
            if not shard.ended:
                held.setdefault(shard.placement.machine_id, set()).add(shard_id)
    assert {m: set(shards) for m, shards in world.state.held.items() if shards} == held
    assert world.state.starting.keys() == {r.replica_id for r in _in(world, "placed")}
    assert world.state.leaving.keys() == {r.replica_id for r in _in(world, "draining", "stopping", "failed")}
    of_model = {m: set(replicas) for m, replicas in world.state.of_model.items() if replicas}
    by_model: dict[str, set[str]] = {}
    for replica in world.state.facts.replicas.values():
        by_model.setdefault(replica.model, set()).add(replica.replica_id)
    assert of_model == by_model


def _in(world: World, *phases: str) -> list[Replica]:
    return [r for r in world.state.facts.replicas.values() if r.phase in phases]


def gangs_are_together(world: World) -> None:
    """No replica spans two fabrics, or machines that share none."""
    fabrics = world.state.fabrics()
    for replica in world.state.facts.replicas.values():
        if len(replica.shards) < 2:
            continue
        assert len(set(replica.machines)) == len(replica.shards), f"{replica.replica_id} is twice on one machine"
        members = [fabrics.members[m] for m in replica.machines]
        if replica.nvlink_domain is not None:
            assert {m.domain for m in members} == {replica.nvlink_domain}
        else:
            assert replica.fabric is not None, f"{replica.replica_id} spans machines on nothing"
            assert all(replica.fabric in m.nics for m in members), f"{replica.replica_id} spans two fabrics"
