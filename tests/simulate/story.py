"""Random stories from a seed: whatever happens, the invariants hold, and when it stops what is wanted is there.

A seed's steps draw from generators of their own, so that a step can be left out without changing the others: that is
how a failing story is cut down to the shortest that still fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import msgspec

from libs.events import Command, state_hash
from libs.events.commands import (
    CapRack,
    CordonNode,
    DrainNode,
    LendNode,
    ReclaimNode,
    RemoveModel,
    RestartModel,
    RollBackModel,
    ScaleModel,
    StartModel,
    StartSystem,
    StopModel,
    StopSystem,
    UncordonNode,
    WakeModel,
)
from libs.events.model import Adapter, AntiAffinity, Canary, ModelSpec, Profile, Scaling
from libs.events.refusal import Refused
from services.scheduler.core.placement.capacity import Capacity
from services.scheduler.core.placement.search import Search
from services.scheduler.core.reconciler.demand import wanted
from services.scheduler.core.state.evolve import evolve
from services.scheduler.core.state.snapshot import Kept, keep, restore
from services.scheduler.core.state.state import State
from tests.unit.scheduler.harness import World, cpu_profile, gpu_profile, model_spec

from .invariants import ALWAYS, silence_removes_nothing

STEPS = 50
CALM_S = 420
"""After the last fault: the longest back-off, a drain's grace, and time to start."""
DECISIONS_PER_FACT = 12
BURST = 40
"""Decisions that may follow at once from one thing that happened, besides those for each replica there is."""


class Story:
    """One seed's world and what is done to it."""

    def __init__(self, seed: int, skip: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.skip = skip
        self.random = random.Random(f"{seed}")
        self.kind = self.random.choice(["mixed", "mixed", "on demand", "busy"])
        self.world = World()
        self.world.checks = list(ALWAYS)
        self.told: list[str] = []
        self.facts = 0
        if seed % 4 == 3:
            self.world.starts_at_once = self.random.choice([1, 2])
            self.world.reconciler = self.world.leader()
        fabrics = self.random.choice([(None,), ("left",), ("left", "right")])
        for i in range(self.random.randint(2, 5)):
            gpus = self.random.choice([0, 0, 2, 4])
            machine = self.world.machine(
                f"m{i}",
                cores=self.random.choice([1, 2, 4]),
                gpus=gpus,
                fabric=self.random.choice(fabrics),
                labels={"rack": self.random.choice("ab")},
            )
            machine.lingers = self.random.choice([True, False])
            self.told.append(f"{machine.machine_id}: {machine.registered.cpu_count} cores, {gpus} GPUs")
        self.world.mirror()
        self.world.weights("w", "v1")
        self.tuned = seed % 10 == 1
        if self.tuned:
            self.world.weights("law", "v1")
        self.names = [f"model-{i}" for i in range(self.random.randint(1, 4))]

    def spec(self, name: str) -> ModelSpec:
        choose = self.random.choice
        profiles: list[Profile] = [
            cpu_profile(cores=choose([0, 1, 2]), memory_mb=choose([500, 3000]), startup_timeout_s=60, parallel=2)
        ]
        if choose([True, False]):
            profiles.append(
                gpu_profile(gpus=choose([1, 2]), nodes=choose([1, 1, 2]), priority=1, startup_timeout_s=60, parallel=2)
            )
        if choose([True, False, False]):
            profiles = [
                msgspec.structs.replace(p, replicas=choose([0, 1, 2]) if i else 1) for i, p in enumerate(profiles)
            ]
        count = choose([0, 1, 1, 2, 3])
        fixed = any(p.replicas is not None for p in profiles)
        scaling = Scaling(
            min=count,
            max=count + choose([1, 2]) if count and not fixed and choose([True, self.kind == "busy"]) else None,
            on_demand=choose([True, False, False]) if self.kind == "mixed" else self.kind == "on demand",
            evict_after_idle_s=choose([0, 10]),
            min_lifetime_s=choose([0, 30]),
        )
        spec = model_spec(
            name,
            count,
            *profiles,
            source=choose([None, None, "library:w"]),
            context_length=choose([1024, 2048]),
            priority_class=choose(["low", "normal", "normal", "high"]),
            canary=choose([None, None, Canary(min_requests=10)]),
            anti_affinity=self.apart(),
            loras=self.loras(name),
        )
        return msgspec.structs.replace(spec, scaling=scaling)

    def apart(self) -> tuple[AntiAffinity, ...]:
        """In every fifth story somebody keeps away from others."""
        if self.seed % 5 != 2:
            return ()
        choose = self.random.choice
        return choose(
            [(), (AntiAffinity(models=choose([(), (choose(self.names),)]), within=choose(["node", "rack"])),)]
        )

    def loras(self, name: str) -> tuple[Adapter, ...]:
        """In every tenth story models have fine-tunings."""
        if not self.tuned:
            return ()
        return self.random.choice([(), (Adapter(name=f"{name}-law", source="library:law"),)])

    def act(self) -> None:
        actions = ACTIONS if self.kind == "mixed" else [*ACTIONS, *MORE[self.kind]]
        said = self.random.choice(actions)(self)
        if said:
            self.facts += 1
            self.told.append(f"{self.world.now:%M:%S} {said}")

    def send(self, command: Command) -> bool:
        """Whether it changed something."""
        try:
            return self.world.command(command) is not None
        except Refused:
            return False

    def run(self) -> None:
        world = self.world
        for step in range(STEPS):
            self.random = random.Random(f"{self.seed}:{step}")
            pause = self.random.choice([0.5, 1.0, 2.0, 2.0, 4.5] if self.kind == "mixed" else [2.0, 4.5])
            before = len(world.log), len(world.state.facts.replicas)
            if step not in self.skip and self.random.random() < 0.6:
                self.act()
            world.step(pause)
            silence_removes_nothing(world)
            self.no_storm(*before)
        self.calm()
        for _ in range(CALM_S // 10):
            world.step(1.0)
            world.wait(9, step=3)
        self.settled()

    def no_storm(self, events: int, replicas: int) -> None:
        decided = sum(1 for cause in self.world.causes[events:] if cause)
        assert decided <= BURST + 3 * (replicas + len(self.world.machines)), f"{decided} decisions in one step"

    def calm(self) -> None:
        world = self.world
        self.told.append(f"{world.now:%M:%S} calm")
        self.hear_again()
        world.uses, world.waiting = {}, {}
        self.send(StartSystem())
        for rack in list(world.state.facts.rack_watts):
            self.send(CapRack(rack=rack))
        for machine in world.machines.values():
            machine.connected, machine.slow = True, 1
            if not machine.up:
                machine.reboot()
            machine.fails, machine.stuck, machine.busy = {}, set(), set()
            if world.state.facts.machines[machine.machine_id].facts != machine.registered:
                world.append(machine.registered)
            if world.state.facts.machines[machine.machine_id].mode != "open":
                world.command(UncordonNode(machine_id=machine.machine_id))
        for name, model in list(world.state.facts.models.items()):
            if not model.removed:
                self.send(RollBackModel(model=name))
                self.send(StartModel(model=name))
                self.send(ScaleModel(model=name, scaling=model.spec.scaling))
                if model.parked is not None or model.retry_at is not None:
                    self.send(RestartModel(model=name))

    def hear_again(self) -> None:
        if self.world.deaf:
            self.world.deaf = False
            self.world.listening_since = self.world.now

    def settled(self) -> None:
        """What is wanted is there, or it is said why not, and nothing else is left."""
        world = self.world
        wanted_shards: set[str] = set()
        for name, model in world.state.facts.models.items():
            assert not model.removed, f"{name} was removed and is still there"
            replicas = world.state.replicas_of(name)
            assert all(r.phase == "ready" for r in replicas), [(r.replica_id, r.phase, r.reason) for r in replicas]
            current = [r for r in replicas if r.fingerprint == model.fingerprint and r.placed >= model.restarted]
            wanted_shards |= {shard_id for r in replicas for shard_id in r.shards}
            if model.unplaced is None:
                loaded = world.state.loras_of(model.spec)
                assert all(r.loras == loaded for r in current), f"{name} runs older fine-tunings"
            count = 0
            for group in wanted(world.state, model):
                count += group.count
                here = [r for r in current if group.profile is None or r.profile.name == group.profile]
                if len(here) < group.count:
                    assert model.unplaced is not None, f"{name} lacks replicas and nobody says why"
                    only = None if group.profile is None else (group.profile,)
                    search = Search(world.state, model, Capacity(world.state), world.heartbeats(), profiles=only)
                    assert search.best().machine_id is None, f"{name} lacks a replica that fits"
            assert len(replicas) <= count, f"{name}: {len(replicas)} replicas, {count} wanted"
        running = {shard_id for machine in world.machines.values() for shard_id in machine.shards}
        assert running == wanted_shards, f"running {sorted(running)}, wanted {sorted(wanted_shards)}"
        machine_facts = sum(1 for cause in world.causes if not cause)
        assert len(world.log) - machine_facts <= DECISIONS_PER_FACT * (self.facts + machine_facts)
        state = State()
        for position, event in world.log:
            state = evolve(state, event, position)
        assert state.hash() == world.state.hash() == state_hash(world.state.facts), "equal log, another state"

    def machine(self) -> str:
        return self.random.choice(sorted(self.world.machines))

    def model(self) -> str:
        live = sorted(name for name, model in self.world.state.facts.models.items() if not model.removed)
        return self.random.choice(live or self.names)


def _define(story: Story) -> str | None:
    spec = story.spec(story.random.choice(story.names))
    scaling = spec.scaling
    if not story.send(_definition(spec)):
        return None
    profiles = ", ".join(
        f"{p.name} {p.gpus_per_node}x{p.nodes}" + (f" ={p.replicas}" if p.replicas is not None else "")
        for p in spec.profiles
    )
    kind = " on demand" if scaling.on_demand else ""
    return f"define {spec.name} x{scaling.min}-{scaling.max}{kind} {spec.priority_class} [{profiles}] {spec.source}"


def _definition(spec: ModelSpec) -> Command:
    from libs.events.commands import DefineModel

    return DefineModel(spec=spec)


def _scale(story: Story) -> str | None:
    name, count = story.model(), story.random.randint(0, 3)
    return f"scale {name} {count}" if story.send(ScaleModel(model=name, scaling=Scaling(min=count))) else None


def _remove(story: Story) -> str | None:
    name = story.model()
    return f"remove {name}" if story.random.random() < 0.3 and story.send(RemoveModel(model=name)) else None


def _stop_or_start(story: Story) -> str | None:
    name = story.model()
    command = story.random.choice([StopModel(model=name), StartModel(model=name), StartModel(model=name)])
    return f"{type(command).__name__} {name}" if story.send(command) else None


def _system(story: Story) -> str | None:
    command = story.random.choice([StopSystem(), StartSystem(), StartSystem()])
    return type(command).__name__ if story.send(command) else None


def _restart(story: Story) -> str | None:
    name, in_place = story.model(), story.random.choice([True, False])
    return f"restart {name} in place {in_place}" if story.send(RestartModel(model=name, in_place=in_place)) else None


def _wake(story: Story) -> str | None:
    name = story.model()
    return f"wake {name}" if story.send(WakeModel(model=name)) else None


def _use(story: Story) -> str | None:
    name = story.model()
    some = {"busy": [0, 9, 9, 9], "on demand": [0, 1, 9, 9]}.get(story.kind, [0, 0, 1, 9])
    in_flight, requests = story.random.choice(some), story.random.choice([0, 20])
    failed = story.random.choice([0, requests])
    answered_ms, unanswered = story.random.choice([(None, 0), (None, 0), (100, 0), (60_000, 3)])
    figures = {"answered_ms": answered_ms, "unanswered": unanswered}
    story.world.use(name, in_flight, requests=requests, failed=failed, **figures)
    answers = "answers" if answered_ms == 100 else "does not answer" if unanswered else "says nothing"
    return f"{name} has {in_flight} in flight on each replica, {failed} of {requests} failed; it {answers}"


def _crash(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    ready = sorted(shard_id for shard_id, (_, phase) in machine.shards.items() if phase == "ready")
    if not machine.up or not ready:
        return None
    machine.crash(story.random.choice(ready))
    return f"crash on {machine.machine_id}"


def _partition(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    machine.connected = not machine.connected
    return f"{machine.machine_id} {'heals' if machine.connected else 'is cut off'}"


def _blackout(story: Story) -> str | None:
    """All agents but, at times, one are heard no more, or are again."""
    machines = [story.world.machines[name] for name in sorted(story.world.machines)]
    if any(not machine.connected for machine in machines):
        for machine in machines:
            machine.connected = True
        return "all machines are heard again"
    spared = story.random.choice([None, *machines])
    for machine in machines:
        machine.connected = machine is spared
    return f"nothing is heard any more but {spared.machine_id if spared is not None else 'nobody'}"


def _power(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    if machine.up:
        machine.up = False
        return f"{machine.machine_id} goes dark"
    story.random.choice([machine.reboot, machine.wipe])()
    return f"{machine.machine_id} is up again"


def _agent(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    if machine.up:
        machine.restart_agent()
    return f"agent of {machine.machine_id} restarts"


def _slow(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    machine.slow = story.random.choice([1, 3, 6])
    return f"{machine.machine_id} does something every {machine.slow} steps"


def _again(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    machine.say_again()
    return f"{machine.machine_id} says its last again"


def _card(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    facts = story.world.state.facts.machines[machine.machine_id].facts
    if not machine.up or not machine.connected or not facts.gpus:
        return None
    index = story.random.randrange(len(facts.gpus))
    ill = "XID 48: an error in its memory" if index % 2 else "XID 79: fallen off the bus"
    problems = () if facts.gpus[index].problems else (ill,)
    gpus = tuple(msgspec.structs.replace(gpu, problems=problems) if gpu.index == index else gpu for gpu in facts.gpus)
    story.world.append(msgspec.structs.replace(facts, at=story.world.now, gpus=gpus))
    return f"GPU {index} of {machine.machine_id} {'falls ill' if problems else 'is well'}"


def _mode(story: Story) -> str | None:
    machine_id = story.machine()
    kind = story.random.choice([CordonNode, DrainNode, LendNode, UncordonNode, UncordonNode, ReclaimNode])
    return f"{kind.__name__} {machine_id}" if story.send(kind(machine_id=machine_id)) else None


def _cap(story: Story) -> str | None:
    command = CapRack(rack=story.random.choice("ab"), watts=story.random.choice([None, 0, 1400]))
    return f"rack {command.rack} may draw {command.watts} W" if story.send(command) else None


def _bad_engine(story: Story) -> str | None:
    machine, name = story.world.machines[story.machine()], story.random.choice(story.names)
    if story.random.random() < 0.5:
        machine.fails[name] = "out of memory"
    else:
        machine.stuck.add(name)
    return f"{name} does not start on {machine.machine_id}"


def _good_engines(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    machine.fails, machine.stuck = {}, set()
    return f"everything starts on {machine.machine_id}"


def _busy(story: Story) -> str | None:
    machine = story.world.machines[story.machine()]
    machine.busy = set(machine.shards) if story.random.random() < 0.5 else set()
    return f"requests stay in flight on {machine.machine_id}" if machine.busy else None


def _deaf(story: Story) -> str | None:
    if story.world.deaf:
        story.hear_again()
    else:
        story.world.deaf = True
    return f"the leader is {'deaf' if story.world.deaf else 'hearing'}"


def _clock(story: Story) -> str | None:
    seconds = story.random.choice([-3, 3, 30])
    story.world.now += timedelta(seconds=seconds)
    # What is heard is measured on another clock, which does not jump.
    story.world.listening_since += timedelta(seconds=seconds)
    for machine in story.world.machines.values():
        machine.last_heard += timedelta(seconds=seconds)
        if machine.gap is not None:
            machine.gap = machine.gap[0] + timedelta(seconds=seconds), machine.gap[1] + timedelta(seconds=seconds)
    return f"the clock steps {seconds} s"


def _fail_over(story: Story) -> str | None:
    """Another instance leads: it knows the log or a snapshot of what it says, and nothing else."""
    world = story.world
    state = State()
    for position, event in world.log:
        state = evolve(state, event, position)
    kept = restore(msgspec.json.decode(msgspec.json.encode(keep(world.state)), type=Kept))
    assert state.hash() == kept.hash() == world.state.hash(), "equal log, another state"
    # It read the whole log, or its snapshot.
    world.state = kept if len(world.log) % 2 else state
    world.reconciler, world.listening_since = world.leader(), world.now
    return "another leads"


def _weights(story: Story) -> str | None:
    name = story.random.choice(["w", "law"]) if story.tuned else "w"
    story.world.weights(name, story.random.choice(["v1", "v2"]))
    return f"weights {name}"


ACTIONS: list[Callable[[Story], str | None]] = [
    _define, _define, _define, _define, _scale, _scale, _remove, _crash, _crash, _partition, _partition, _power, _agent,
    _mode, _bad_engine, _good_engines, _busy, _deaf, _fail_over, _weights, _stop_or_start, _system, _restart, _wake,
    _wake, _use, _use, _slow, _again, _card, _cap, _clock, _blackout, _blackout,
]  # fmt: skip


MORE: dict[str, list[Callable[[Story], str | None]]] = {
    "on demand": [_wake] * 12 + [_use] * 6,
    "busy": [_use] * 12,
}


def failure(seed: int, skip: frozenset[int] = frozenset()) -> tuple[str, list[str]] | None:
    """What goes wrong in a story, and the story; None: nothing does."""
    story = Story(seed, skip)
    try:
        story.run()
    except AssertionError as why:
        return f"at {story.world.now:%M:%S}: {str(why) or 'an assertion'}", story.told
    except Exception as why:
        return f"at {story.world.now:%M:%S}: {type(why).__name__}: {why}", story.told
    return None


def shortest(seed: int) -> tuple[str, list[str]]:
    """A failing story with as few of its steps as still fail."""
    found = failure(seed)
    assert found is not None
    skip: frozenset[int] = frozenset()
    size = STEPS // 2
    while size:
        for first in range(0, STEPS, size):
            more = skip | set(range(first, first + size))
            if more != skip and (other := failure(seed, more)) is not None:
                skip, found = more, other
        size //= 2
    return found


def tell(seed: int) -> None:
    """Raises AssertionError with a minimal script."""
    if failure(seed) is not None:
        why, told = shortest(seed)
        raise AssertionError(f"seed {seed} {why}\n" + "\n".join(told))
