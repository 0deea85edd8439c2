"""The scheduler's core at the size of a large fleet: ``python -m bench.scheduler``.

Measured without a bus: what a decision costs after one fact, a plan of everything from nothing, a fold of a long log,
and the memory it takes. Figures stand in docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import resource
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from libs.events import Event, decode, encode
from libs.events.commands import DefineModel
from libs.events.machine import EngineFound, Gpu, MachineRegistered
from libs.events.model import ModelSpec, Profile, Scaling
from libs.events.shard import ShardAdopted, ShardFailed, ShardLoading, ShardReady, ShardStarting
from libs.fit.headers import open_source, read
from services.scheduler.core.commands.decide import decide
from services.scheduler.core.inputs.heartbeats import Heartbeat
from services.scheduler.core.reconciler.reconcile import Reconciler
from services.scheduler.core.state.evolve import evolve
from services.scheduler.core.state.state import State

HEADERS = read(*open_source(str(Path(__file__).parents[1] / "tests" / "data" / "models" / "llama-3-8b")))[0].facts
"""So that every placing weighs what it would hold."""
GPUS = 8
MODELS_PER_NODE = 0.5
REPLICAS_PER_NODE = 4
START = datetime(2026, 1, 1, tzinfo=UTC)


class Cluster:
    """A state, its leader and the log so far."""

    def __init__(self, nodes: int) -> None:
        self.state = State()
        self.leader = Reconciler(starts_at_once=nodes * GPUS)  # all at once: what is measured is choosing
        self.now = START
        self.position = 0
        self.log: list[bytes] = []
        self.nodes = [f"gpu-{i:04}" for i in range(nodes)]
        self.heartbeats = {name: Heartbeat(silent_ms=100) for name in self.nodes}

    def append(self, event: Event) -> None:
        """Put an event on the log and fold it."""
        self.position += 1
        self.log.append(encode(event))
        self.state = evolve(self.state, event, self.position)

    def settle(self) -> int:
        """Decide until nothing is left; how many decisions that took."""
        count = 0
        while decisions := self.leader.react(self.state, self.heartbeats, self.now):
            for _, event in decisions:
                self.append(event)
            count += len(decisions)
        return count

    def machines(self) -> None:
        """Register every node, with GPUS cards each."""
        for i, name in enumerate(self.nodes):
            uuids = [f"GPU-{name}-{g}" for g in range(GPUS)]
            gpus = tuple(
                Gpu(
                    index=g,
                    uuid=uuid,
                    name="NVIDIA H100 80GB HBM3",
                    gpu_class="h100-80g",
                    memory_total_mb=81559,
                    nvlink_peers=tuple(u for u in uuids if u != uuid),
                    numa_node=g // 4,
                )
                for g, uuid in enumerate(uuids)
            )
            self.append(
                MachineRegistered(
                    at=self.now,
                    machine_id=name,
                    address=name,
                    agent_version="1",
                    sealing_key="00" * 32,
                    os="linux",
                    arch="x86_64",
                    cpu_count=128,
                    memory_total_mb=1_048_576,
                    labels={"rack": f"r{i // 16}"},
                    gpus=gpus,
                    gpus_state="verified",
                    engines=(EngineFound(engine="vllm", version="1", source="bench"),),
                )
            )
        self.settle()

    def models(self) -> None:
        """Define MODELS_PER_NODE models a node, one in four of them on two cards, with REPLICAS_PER_NODE replicas a
        node in all."""
        count = max(1, int(len(self.nodes) * MODELS_PER_NODE))
        for i in range(count):
            profile = Profile(
                name="h100", engine="vllm", gpu_class="h100-80g", gpus_per_node=(1, 1, 2, 1)[i % 4], cores=4
            )
            spec = ModelSpec(
                name=f"model-{i:04}",
                profiles=(profile,),
                source="library:weights",
                scaling=Scaling(min=int(REPLICAS_PER_NODE / MODELS_PER_NODE)),
            )
            event = decide(self.state, DefineModel(spec=spec), "c-1", self.now)
            assert event is not None
            self.append(event)

    def library(self) -> None:
        """Add the weights every model is made of, and a mirror that has them."""
        from libs.events.library import LibraryVersion, MirrorServing, VersionAdded, WeightFile

        file = WeightFile(path="model.safetensors", size_bytes=16_000_000_000, sha256="ab" * 32)
        version = LibraryVersion(name="weights", version="v1", files=(file,), source="bench", headers=HEADERS)
        self.append(VersionAdded(at=self.now, name="weights", version=version))
        self.append(MirrorServing(at=self.now, mirror_id="mirror-1", url="http://mirror-1:1"))

    def shard(self, replica_id: str, kind: type[Event], **fields: object) -> None:
        """Have the nodes of a replica report the same of each of its shards."""
        replica = self.state.facts.replicas[replica_id]
        for shard_id, shard in replica.shards.items():
            about = {
                "at": self.now,
                "machine_id": shard.placement.machine_id,
                "shard_id": shard_id,
                "replica_id": replica_id,
                "model": replica.model,
                "generation": 1,
            }
            self.append(kind(**about, **fields))

    def start_all(self) -> None:
        """Bring up every replica that is placed."""
        for replica_id, replica in list(self.state.facts.replicas.items()):
            if replica.phase == "placed":
                self.shard(replica_id, ShardStarting, engine="vllm")
                self.shard(replica_id, ShardLoading, pid=1)
                self.shard(replica_id, ShardReady, pid=1, url=f"http://{replica.machines[0]}:1", loaded_ms=1)
        self.heartbeats = {
            name: Heartbeat(silent_ms=100, shards=frozenset(self.state.held.get(name, ()))) for name in self.nodes
        }
        self.settle()

    def react_ms(self) -> tuple[float, int]:
        """One look after what was just folded, and how many decisions it gave."""
        began = time.perf_counter()
        decisions = self.leader.react(self.state, self.heartbeats, self.now)
        took = (time.perf_counter() - began) * 1000
        for _, event in decisions:
            self.append(event)
        return took, len(decisions)


def percentile(values: list[float], share: float) -> float:
    """The value at a share (0 to 1) of the sorted values."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def decisions_after_facts(cluster: Cluster, facts: int) -> list[float]:
    """An engine dies, its replica is placed elsewhere, comes up: each look of the leader's on the way, in ms."""
    took: list[float] = []
    replicas = [r for r, replica in cluster.state.facts.replicas.items() if replica.phase == "ready"]
    for i in range(facts):
        replica_id = replicas[(i * 7919) % len(replicas)]
        replica = cluster.state.facts.replicas.get(replica_id)
        if replica is None or replica.phase != "ready":
            continue
        cluster.now += timedelta(seconds=90)
        cluster.shard(replica_id, ShardFailed, phase="ready", reason="the engine was killed")
        before = cluster.state.facts.models[replica.model].placings
        for _ in range(6):
            ms, decided = cluster.react_ms()
            took.append(ms)
            if not decided:
                break
        model = cluster.state.facts.models[replica.model]
        assert model.placings == before + 1
        new = next(r for r in cluster.state.of_model[replica.model].values() if r.phase == "placed")
        for kind, fields in (
            (ShardStarting, {"engine": "vllm"}),
            (ShardLoading, {"pid": 1}),
            (ShardReady, {"pid": 1, "url": "http://x:1", "loaded_ms": 1}),
        ):
            cluster.shard(new.replica_id, kind, **fields)
            ms, _ = cluster.react_ms()
            took.append(ms)
        for machine_id in new.machines:
            held = frozenset(cluster.state.held.get(machine_id, ()))
            cluster.heartbeats[machine_id] = Heartbeat(silent_ms=100, shards=held)
        cluster.settle()
    return took


def node_death(cluster: Cluster) -> tuple[float, int]:
    """A machine is lost: how long until everything it ran is placed elsewhere, and how many replicas that is."""
    machine_id = cluster.nodes[len(cluster.nodes) // 2]
    cluster.heartbeats = cluster.heartbeats | {machine_id: Heartbeat(silent_ms=9000)}
    running = len(cluster.state.held.get(machine_id, ()))
    began = time.perf_counter()
    cluster.settle()
    return (time.perf_counter() - began) * 1000, running


def long_log(cluster: Cluster, events: int) -> Iterator[bytes]:
    """The log so far, and then agents that restart and say again what they run, up to so many events."""
    yield from cluster.log
    left = events - len(cluster.log)
    shards = [
        (replica, shard_id, shard.placement.machine_id)
        for replica in cluster.state.facts.replicas.values()
        for shard_id, shard in replica.shards.items()
        if shard.phase == "ready"
    ]
    for i in range(left):
        replica, shard_id, machine_id = shards[i % len(shards)]
        yield encode(
            ShardAdopted(
                at=START,
                machine_id=machine_id,
                shard_id=shard_id,
                replica_id=replica.replica_id,
                model=replica.model,
                generation=1,
                pid=i,
                url=replica.url,
                ready=True,
            )
        )


def fold_s(lines: Iterator[bytes]) -> tuple[float, int]:
    """Fold a log into a new state: seconds that took, reading included, and the number of events. Raises BadPayload,
    UnknownTag."""
    state = State()
    count = 0
    spent = 0.0
    for count, line in enumerate(lines, 1):
        at = time.perf_counter()
        event = decode(line)
        assert isinstance(event, Event)
        state = evolve(state, event, count)
        spent += time.perf_counter() - at
    return spent, count


def rss_mb() -> int:
    """Memory this process holds now, in MiB."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def measure(nodes: int, facts: int) -> tuple[Cluster, dict[str, float]]:
    """A cluster of so many nodes after ``facts`` deaths of engines, and the figures of a row of the table."""
    cluster = Cluster(nodes)
    cluster.library()
    cluster.machines()
    cluster.models()
    began = time.perf_counter()
    cluster.settle()
    plan_s = time.perf_counter() - began
    placed = len(cluster.state.facts.replicas)
    cluster.start_all()
    gc.collect()
    idle = [cluster.react_ms()[0] for _ in range(50)]
    took = decisions_after_facts(cluster, facts)
    death_ms, ran = node_death(cluster)
    return cluster, {
        "nodes": nodes,
        "replicas": placed,
        "plan_s": plan_s,
        "idle_p50_ms": percentile(idle, 0.5),
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "worst_ms": max(took),
        "death_ms": death_ms,
        "death_replicas": ran,
        "rss_mb": rss_mb(),
    }


def main() -> None:
    """Print the table. Raises BadPayload, UnknownTag."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--facts", type=int, default=300)
    parser.add_argument("--events", type=int, default=1_000_000)
    options = parser.parse_args()
    print(
        "| nodes | replicas | cold plan | nothing to do, p50 | after a fact, p50 | p99 | worst | a node dies | memory |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    cluster = None
    for nodes in options.nodes:
        cluster, figures = measure(nodes, options.facts)
        print(
            f"| {nodes:,} | {figures['replicas']:,} | {figures['plan_s']:.2f} s | {figures['idle_p50_ms']:.2f} ms | "
            f"{figures['p50_ms']:.2f} ms | {figures['p99_ms']:.2f} ms | {figures['worst_ms']:.1f} ms | "
            f"{figures['death_ms']:.0f} ms ({figures['death_replicas']} replicas) | {figures['rss_mb']} MiB |",
            flush=True,
        )
    if cluster is not None and options.events:
        seconds, count = fold_s(long_log(cluster, options.events))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"\nfold of {count:,} events: {seconds:.1f} s ({seconds / count * 1e6:.1f} µs each); peak memory {peak} MiB"
        )


if __name__ == "__main__":
    main()
