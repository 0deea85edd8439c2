"""Random stories from a seed: whatever happens, nothing is held twice, and when it stops what is wanted is there."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from libs.events import state_hash
from libs.events.commands import (
    CordonNode,
    DrainNode,
    RemoveModel,
    RestartModel,
    ScaleModel,
    UncordonNode,
)
from libs.events.model import ModelSpec, Scaling
from services.scheduler.core.evolve import evolve
from services.scheduler.core.placement import place
from services.scheduler.core.reconcile import Reconciler
from services.scheduler.core.room import Room
from services.scheduler.core.state import State

from .harness import (
    World,
    cpu_profile,
    gpu_profile,
    index_follows_facts,
    lost_nodes_do_not_serve,
    model_spec,
    no_double_holding,
    really_free,
)

STEPS = 50
CALM_S = 420
"""After the last fault: the longest back-off, a drain's grace, and time to start."""
DECISIONS_PER_FACT = 12


class Story:
    """One seed's world and what is done to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.world.checks = [no_double_holding, index_follows_facts, really_free]
        self.told: list[str] = []
        self.facts = 0
        for i in range(self.random.randint(2, 5)):
            gpus = self.random.choice([0, 0, 2, 4])
            self.world.machine(f"m{i}", cores=self.random.choice([1, 2, 4]), gpus=gpus)
        self.world.mirror()
        self.world.weights("w", "v1")
        self.names = [f"model-{i}" for i in range(self.random.randint(1, 4))]

    def spec(self, name: str) -> ModelSpec:
        choose = self.random.choice
        profiles = [cpu_profile(cores=choose([0, 1, 2]), memory_mb=choose([500, 3000]), startup_timeout_s=60)]
        if choose([True, False]):
            profiles.append(gpu_profile(gpus=choose([1, 2]), priority=1, startup_timeout_s=60))
        source = choose([None, None, "library:w"])
        return model_spec(name, choose([0, 1, 1, 2, 3]), *profiles, source=source, context_length=choose([1024, 2048]))

    def act(self) -> None:
        action = self.random.choice(_ACTIONS)
        said = action(self)
        if said:
            self.facts += 1
            self.told.append(f"{self.world.now:%M:%S} {said}")

    def run(self) -> None:
        world = self.world
        for _ in range(STEPS):
            if self.random.random() < 0.5:
                self.act()
            world.step(self.random.choice([0.5, 1.0, 2.0]))
            lost_nodes_do_not_serve(world)
        self.calm()
        for _ in range(CALM_S // 10):
            world.step(1.0)
            world.wait(9, step=3)
        self.settled()

    def calm(self) -> None:
        world = self.world
        self.told.append(f"{world.now:%M:%S} calm")
        self.hear_again()
        for machine in world.machines.values():
            machine.connected = True
            if not machine.up:
                machine.reboot()
            machine.fails, machine.stuck, machine.busy = {}, set(), set()
            if world.state.facts.machines[machine.machine_id].mode != "open":
                world.command(UncordonNode(machine_id=machine.machine_id))
        for name in list(world.state.facts.models):
            if not world.model(name).removed:
                world.command(RestartModel(model=name))

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
            current = [r for r in replicas if r.fingerprint == model.fingerprint]
            wanted_shards |= {shard_id for r in replicas for shard_id in r.shards}
            if len(current) < model.spec.scaling.min:
                assert model.unplaced is not None, f"{name} lacks replicas and nobody says why"
                assert place(world.state, model, Room(world.state), world.hearing()).machine_id is None
            else:
                assert len(replicas) == model.spec.scaling.min
        running = {shard_id for machine in world.machines.values() for shard_id in machine.shards}
        assert running == wanted_shards
        machine_facts = sum(1 for cause in world.causes if not cause)
        assert len(world.log) - machine_facts <= DECISIONS_PER_FACT * (self.facts + machine_facts)

    def machine(self) -> str:
        return self.random.choice(sorted(self.world.machines))

    def model(self) -> str | None:
        live = sorted(name for name, model in self.world.state.facts.models.items() if not model.removed)
        return self.random.choice(live) if live else None


def _define(story: Story) -> str | None:
    spec = story.spec(story.random.choice(story.names))
    story.world.define(spec)
    return f"define {spec.name} x{spec.scaling.min} {[p.name for p in spec.profiles]} {spec.source}"


def _scale(story: Story) -> str | None:
    name, count = story.model(), story.random.randint(0, 3)
    return name and story.world.command(ScaleModel(model=name, scaling=Scaling(min=count))) and f"scale {name} {count}"  # type: ignore[return-value]


def _remove(story: Story) -> str | None:
    name = story.model() if story.random.random() < 0.3 else None
    return name and story.world.command(RemoveModel(model=name)) and f"remove {name}"  # type: ignore[return-value]


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


def _mode(story: Story) -> str | None:
    machine_id = story.machine()
    command = story.random.choice([CordonNode, DrainNode, UncordonNode, UncordonNode])(machine_id=machine_id)
    return story.world.command(command) and f"{type(command).__name__} {machine_id}"  # type: ignore[return-value]


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
    return None


def _deaf(story: Story) -> str | None:
    if story.world.deaf:
        story.hear_again()
    else:
        story.world.deaf = True
    return f"the leader is {'deaf' if story.world.deaf else 'hearing'}"


def _fail_over(story: Story) -> str | None:
    """Another instance leads: it knows the log, and nothing else."""
    world = story.world
    state = State()
    for position, event in world.log:
        state = evolve(state, event, position)
    assert state.hash() == world.state.hash() == state_hash(world.state.facts)
    world.state, world.reconciler, world.listening_since = state, Reconciler(), world.now
    return "another leads"


def _weights(story: Story) -> str | None:
    story.world.weights("w", story.random.choice(["v1", "v2"]))
    return "weights"


_ACTIONS: list[Callable[[Story], str | None]] = [
    _define, _define, _define, _scale, _scale, _remove, _crash, _crash, _partition, _partition, _power, _agent,
    _mode, _bad_engine, _good_engines, _busy, _deaf, _fail_over, _weights,
]  # fmt: skip


def tell(seed: int) -> None:
    story = Story(seed)
    try:
        story.run()
    except BaseException as why:
        script = "\n".join(story.told[-40:])
        raise AssertionError(f"seed {seed} at {story.world.now:%M:%S}: {why}\n{script}") from why


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_seeds(first: int) -> None:
    for seed in range(first, first + 50):
        tell(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_seeds() -> None:
    for seed in range(1000, 4000):
        tell(seed)
