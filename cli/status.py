"""``llmgw status``."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

import click
import msgspec

from cli.cluster import Cluster, on_cluster
from cli.failure import Failed
from cli.home import PartSeen
from cli.instances import Instance, running_instances
from cli.library import import_line
from cli.parts import GATEWAY, NATS, answers
from cli.processes import alive
from cli.racks import over_cap
from cli.running import FULL_BYTES
from cli.watch import watch_option
from libs.bus import BusError, missing
from libs.events.contract import Question
from libs.events.library import ImportUnderWay
from libs.events.questions import (
    STANDINGS,
    AskStanding,
    LibraryAnswer,
    ListLibrary,
    ListModels,
    ListNodes,
    ModelsAnswer,
    NodesAnswer,
    RackPower,
    SchedulerState,
    Standing,
    StateAnswer,
)
from libs.events.sentences.words import count
from libs.events.views import ModelView, NodeView

T = TypeVar("T")
OVER_HALF = {
    "USAGE": " of usage the ledger does not have: is accounting well, and PostgreSQL?",
    "COMMANDS": " of commands nobody carries out: which owner is away?",
    "PARKED": " of messages that could not be handled: see `llmgw event show SEQUENCE --stream PARKED`",
}
LITTLE_BYTES = 512_000_000


CARD = ("GPU ", "instance ")
"""How problems of cards begin, which keep them from being used."""


class Part(msgspec.Struct, frozen=True):
    """A service or server, and how it is."""

    name: str
    state: str
    pid: int | None = None
    restarts: int | None = None


class Status(msgspec.Struct, frozen=True):
    """How the cluster is, for ``--json``."""

    parts: tuple[Part, ...]
    nodes: tuple[NodeView, ...]
    models: tuple[ModelView, ...]
    position: int | None
    """Sequence of the last event the scheduler's leader folded."""
    base_url: str | None = None
    """Where clients are answered; None while the cluster is not up, or is not one of this machine."""
    imports: tuple[ImportUnderWay, ...] = ()
    """Of weights, that go on now."""
    instances: tuple[Instance, ...] = ()
    """Schedulers and gateways, on whatever host."""
    paused: str = ""
    """Why what runs on silent nodes is not placed anew; empty: it is."""
    racks: tuple[RackPower, ...] = ()
    """Those whose power is limited."""


@click.command()
@watch_option
@on_cluster
async def status(cluster: Cluster) -> None:
    """What runs, what serves, and what is missing."""
    now = await look(cluster)
    cluster.out.result(now, lines(now))


async def look(cluster: Cluster) -> Status:
    """Ask everybody, side by side; whoever does not answer is shown so."""

    async def state_of(name: str, question: AskStanding) -> Part:
        try:
            return Part(name, standing_words(await cluster.ask(question, Standing, timeout_s=2)))
        except Failed as error:
            return Part(name, error.message)

    async def answered(question: Question, kind: type[T]) -> T | None:
        """None: whoever should answer is shown as it is."""
        with suppress(Failed):
            return await cluster.ask(question, kind, timeout_s=2)
        return None

    bus, parts, state, there, defined, library = await asyncio.gather(
        bus_state(cluster),
        asyncio.gather(*(state_of(name, kind()) for name, kind in STANDINGS.items())),
        answered(SchedulerState(), StateAnswer),
        answered(ListNodes(), NodesAnswer),
        answered(ListModels(), ModelsAnswer),
        answered(ListLibrary(), LibraryAnswer),
    )
    position = state.position if state is not None else None
    paused, racks = (state.paused, state.racks) if state is not None else ("", ())
    nodes = there.nodes if there is not None else ()
    models = defined.models if defined is not None else ()
    imports = library.imports if library is not None else ()
    parts = [Part(NATS, bus), *parts]
    if cluster.home is not None:
        record = cluster.home.record()
        parts = with_processes(parts, record.parts)
        parts = await asyncio.gather(*(with_reasons(part, record.ports.get(f"{part.name} status")) for part in parts))
    home = cluster.home
    base_url = home.endpoint().base_url if home is not None and home.endpoint_file.exists() else None
    instances: tuple[Instance, ...] = ()
    with suppress(BusError):
        instances = tuple(await running_instances(cluster))
    return Status(tuple(parts), nodes, models, position, base_url, imports, instances, paused, racks)


def standing_words(standing: Standing) -> str:
    """What one instance says of itself."""
    role = f"{standing.instance} {'leads' if standing.leads else 'stands by'}"
    return "; ".join((role, *standing.problems))


async def bus_state(cluster: Cluster) -> str:
    """Whether the bus is as this version needs it, and has room."""
    try:
        wrong = await missing(cluster.bus)
        rooms = {stream: await cluster.bus.room(stream) for stream in OVER_HALF}
    except BusError as error:
        return f"does not answer for its streams: {error}"
    problems = []
    if wrong:
        more = f" and {len(wrong) - 1} more" if wrong[1:] else ""
        problems.append(f"is not as this version needs it: {wrong[0]}{more}: run `llmgw bus init`")
    for stream, room in rooms.items():
        if room.bytes * 2 > room.bound > 0:
            what = f"{room.bytes / 1e6:,.0f} of at most {room.bound / 1e6:,.0f} MB"
            problems.append(f"stream {stream} is over half full ({what}){OVER_HALF[stream]}")
    if cluster.home is not None and cluster.home.nats.exists():
        free = shutil.disk_usage(cluster.home.nats).free
        if free < LITTLE_BYTES:
            full = "full" if free < FULL_BYTES else "almost full"
            problems.append(f"its disk is {full}: {free / 1e6:,.0f} MB are free")
    return "; ".join(problems) or "answers"


async def with_reasons(part: Part, port: int | None) -> Part:
    """With what a process of this machine says it waits for."""
    if port is None or part.pid is None:
        return part
    reported = await answers(f"http://127.0.0.1:{port}/ready")()
    reasons = [reason for reason in reported if reason not in part.state]
    return msgspec.structs.replace(part, state=f"{part.state}; not ready: {'; '.join(reasons)}") if reasons else part


def with_processes(parts: list[Part], seen: dict[str, PartSeen]) -> list[Part]:
    """The parts with the processes `up` started for them, and those only `up` knows."""
    states = {part.name: part.state for part in parts}
    merged = [
        Part(name, states.pop(name, "runs") if alive(part.process) else "does not run", part.process.pid, part.restarts)
        for name, part in seen.items()
    ]
    return merged + [Part(name, state) for name, state in states.items()]


def _node(node: NodeView) -> Iterator[str]:
    shards = count(len(node.shards), "shard")
    gpus = f", {len(node.gpus_free)} of {len(node.gpus)} GPUs" if node.gpus else ""
    yield (
        f"node {node.machine_id}: {node.state}, {node.cores_free} of {node.cpu_count} cores and "
        f"{node.memory_free_mb:,} of {node.memory_total_mb:,} MB{gpus} free, {shards}"
        + (f": {node.reason}" if node.reason else "")
    )
    yield from (f"  {problem}" for problem in node.problems if problem.startswith(CARD))


def lines(now: Status) -> Iterator[str]:
    """For a person."""
    for part in now.parts:
        process = f" (pid {part.pid}, restarted {count(part.restarts or 0, 'time')})" if part.pid else ""
        url = f" at {now.base_url}" if part.name == GATEWAY and now.base_url else ""
        state, also, why = part.state.partition("; ")
        yield f"{part.name}: {state}{url}{process}{also}{why}"
    yield from (f"  {instance.service} {instance.instance}: {instance.state}" for instance in now.instances)
    yield ""
    for node in now.nodes:
        yield from _node(node)
    yield from map(over_cap, [rack for rack in now.racks if rack.drawn_watts > rack.watts])
    if now.paused:
        yield f"placing anew is paused: {now.paused}"
    if not now.nodes:
        yield "no node has registered"
    for model in now.models:
        why = f": {model.reason}" if model.reason else ""
        yield f"model {model.model}: {model.state}, {model.ready} of {model.wanted} replicas ready{why}"
        yield from (f"  {replica.replica_id}: {replica.progress}" for replica in model.replicas if replica.progress)
    yield from map(import_line, now.imports)
    if not now.models:
        yield "no model is defined"
