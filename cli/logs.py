"""What agents and engines printed, from the machines they are on: ``logs`` of a node, shard, replica or model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import click
import msgspec

from cli.cluster import Cluster, on_cluster, until_interrupted
from cli.failure import Failed
from cli.log import last_sequence
from cli.names import model_name, node_name, replica_name, shard_name
from cli.numbers import Whole
from cli.say import say
from libs.bus import Delivery
from libs.events.questions import AskLogs, ListModels, ListNodes, LogsAnswer, ModelsAnswer, NodesAnswer
from libs.events.shard import ShardEvent
from libs.events.subjects import encode_token, plane
from libs.events.views import ModelView, NodeView

FOLLOW_S = 0.5
"""How often a followed log is asked for what is new."""

LOOKED_BACK = 100_000
"""Events looked through for what a model ran last."""

READ_S = 30.0


class Absent(Failed):
    """Nothing has that name."""


class Source(msgspec.Struct, frozen=True):
    """Whom to ask for what was printed."""

    machine_id: str
    stream: str
    """``agent``, or a shard."""


Find = Callable[[Cluster, str], Awaitable[Source]]


async def of_node(cluster: Cluster, name: str) -> Source:
    """The agent of a node. Raises Failed."""
    nodes = await _nodes(cluster)
    if not any(node.machine_id == name for node in nodes):
        raise Absent(f"there is no node {name!r}: there are {_some(node.machine_id for node in nodes)}")
    return Source(name, "agent")


async def of_shard(cluster: Cluster, name: str) -> Source:
    """A shard that runs, or ran: what ended is found for as long as its node keeps what it printed. Raises Failed."""
    running = _running(await _nodes(cluster))
    if name in running:
        return Source(running[name], name)
    ended = await _told(cluster, plane("evt", "shard", "*", encode_token(name)), 0)
    if not ended:
        raise Absent(f"there is no shard {name!r}: those that run are {_some(running)}")
    return Source(ended[-1].machine_id, name)


async def of_replica(cluster: Cluster, name: str) -> Source:
    """The first shard of a replica, which answers for it. Raises Failed."""
    return await of_shard(cluster, f"{name}-0")


async def of_model(cluster: Cluster, name: str) -> Source:
    """The shard of a model that was started last, one that runs before any that ended. Raises Failed."""
    models = (await cluster.ask(ListModels(), ModelsAnswer)).models
    model = next((model for model in models if model.model == name), None)
    if model is None:
        raise Absent(f"there is no model {name!r}: there are {_some(model.model for model in models)}")
    return await _last_shard(cluster, model, _running(await _nodes(cluster)))


async def of_anything(cluster: Cluster, name: str) -> Source:
    """Whatever bears this name. Raises Failed."""
    for find in (of_node, of_shard, of_model, of_replica):
        try:
            return await find(cluster, name.removesuffix("/agent"))
        except Absent:
            continue
    raise Failed(f"nothing is called {name!r}: see `llmgw node list`, `model list`, `replica list` and `shard list`")


def logs_of(find: Find, name: Callable[[Callable[..., Any]], Callable[..., Any]], help: str) -> click.Command:
    """A command ``logs`` of what ``find`` finds by its name."""

    @click.command("logs", help=help)
    @name
    @click.option("-n", "--lines", type=Whole(1), default=200, show_default=True, help="So many at most.")
    @click.option("-f", "--follow", is_flag=True, help="Go on printing what comes, until Ctrl-C.")
    @until_interrupted
    @on_cluster
    async def command(cluster: Cluster, name: str, lines: int, follow: bool) -> None:
        source = await find(cluster, name)
        question = AskLogs(machine_id=source.machine_id, source=source.stream, lines=lines, after=0)
        while True:
            answer = await cluster.ask(question, LogsAnswer)
            question = msgspec.structs.replace(question, after=answer.cursor)
            for line in answer.lines:
                cluster.out.event({"line": line}, line)
            if not follow:
                return
            await asyncio.sleep(FOLLOW_S)

    return command


node_logs = logs_of(of_node, node_name, "What the agent of a node printed.")
shard_logs = logs_of(
    of_shard, shard_name, "What the engine of a shard printed, also after it ended while its node keeps that."
)
replica_logs = logs_of(of_replica, replica_name, "What the engine of a replica printed: that of its first shard.")
model_logs = logs_of(of_model, model_name, "What the engine of a model printed that was started last.")
logs = logs_of(of_anything, click.argument("name"), "What whatever bears this name printed.")


async def _nodes(cluster: Cluster) -> tuple[NodeView, ...]:
    return (await cluster.ask(ListNodes(), NodesAnswer)).nodes


def _running(nodes: Iterable[NodeView]) -> dict[str, str]:
    """Shards that run, and where."""
    return {shard: node.machine_id for node in nodes for shard in node.shards}


async def _last_shard(cluster: Cluster, model: ModelView, running: dict[str, str]) -> Source:
    since = max(0, await last_sequence(cluster, "EVENTS") - LOOKED_BACK)
    events = [event for event in await _told(cluster, plane("evt", "shard"), since) if event.model == model.model]
    replicas = tuple(f"{replica.replica_id}-" for replica in model.replicas)
    alive = {event.shard_id: event.machine_id for event in events if event.shard_id in running}
    alive = alive or {shard: machine for shard, machine in running.items() if shard.startswith(replicas)}
    started = alive or {event.shard_id: event.machine_id for event in events}
    if not started:
        raise Failed(f"no engine of {model.model} was started lately: `llmgw explain {model.model}` says why")
    shard, machine_id = list(started.items())[-1]
    others = [other for other in alive if other != shard]
    more = f"; others that run: {_some(others)}" if others else ""
    say(f"{shard} on {machine_id}, which {'runs' if alive else 'has ended'}{more}", err=True)
    return Source(machine_id, shard)


async def _told(cluster: Cluster, subjects: str, since: int) -> list[ShardEvent]:
    """Events of shards after a sequence of the log, in order. Raises Failed."""
    events: list[ShardEvent] = []

    async def keep(delivery: Delivery) -> None:
        if isinstance(delivery.message, ShardEvent):
            events.append(delivery.message)

    follower = await cluster.bus.follow("EVENTS", [subjects], keep, start=since)
    try:
        async with asyncio.timeout(READ_S):
            await follower.caught_up.wait()
    except TimeoutError:
        raise Failed(f"the log was not read within {READ_S:g} s: is the cluster busy?") from None
    finally:
        await follower.stop()
    return events


def _some(names: Iterable[str]) -> str:
    known = sorted(names)
    return ", ".join(known[:20]) + (", …" if len(known) > 20 else "") if known else "none"
