"""``llmgw logs``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import click

from cli.cluster import Cluster, on_cluster
from cli.events import last_sequence
from cli.failure import Failed
from cli.say import say
from libs.bus import Delivery
from libs.events.questions import AskLogs, ListModels, ListNodes, LogsAnswer, ModelsAnswer, NodesAnswer
from libs.events.shard import ShardEvent
from libs.events.subjects import encode_token, plane
from libs.events.views import ModelView

FOLLOW_S = 0.5
"""How often a followed log is asked for what is new."""

LOOKED_BACK = 100_000
"""Events looked through for what a model ran last."""

READ_S = 30.0


@click.command()
@click.argument("source", metavar="NODE|SHARD|MODEL")
@click.option("-n", "--lines", type=click.IntRange(1), default=200, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on printing what comes.")
@on_cluster
async def logs(cluster: Cluster, source: str, lines: int, follow: bool) -> None:
    """What an agent (`llmgw logs NODE`, or NODE/agent) or an engine (`llmgw logs SHARD`) printed.

    Of a model: its engine that was started last. What ended is found for as long as its node keeps what it printed.
    """
    machine_id, stream = await _source(cluster, source)
    cursor = 0
    while True:
        question = AskLogs(machine_id=machine_id, source=stream, lines=lines, after=cursor)
        answer = await cluster.ask(question, LogsAnswer)
        cursor = answer.cursor
        for line in answer.lines:
            cluster.out.event({"line": line}, line)
        if not follow:
            return
        await asyncio.sleep(FOLLOW_S)


async def _source(cluster: Cluster, source: str) -> tuple[str, str]:
    """The machine to ask, and for what. Raises Failed."""
    nodes = (await cluster.ask(ListNodes(), NodesAnswer)).nodes
    machine_id, _, part = source.partition("/")
    running: dict[str, str] = {}
    for one in nodes:
        if one.machine_id == machine_id:
            return machine_id, part or "agent"
        running |= dict.fromkeys(one.shards, one.machine_id)
    if source in running:
        return running[source], source
    ended = await _told(cluster, plane("evt", "shard", "*", encode_token(source)), 0)
    if ended:
        return ended[-1].machine_id, source
    models = (await cluster.ask(ListModels(), ModelsAnswer)).models
    model = next((one for one in models if one.model == source), None)
    if model is not None:
        return await _of_model(cluster, model, running)
    raise Failed(
        f"nothing is called {source!r}: nodes are {_some(one.machine_id for one in nodes)}, models are "
        f"{_some(one.model for one in models)}, shards that run are {_some(running)}"
    )


async def _of_model(cluster: Cluster, model: ModelView, running: dict[str, str]) -> tuple[str, str]:
    """The engine of a model that was started last, one that runs before any that ended."""
    since = max(0, await last_sequence(cluster, "EVENTS") - LOOKED_BACK)
    told = [one for one in await _told(cluster, plane("evt", "shard"), since) if one.model == model.model]
    replicas = tuple(f"{replica.replica_id}-" for replica in model.replicas)
    alive = {one.shard_id: one.machine_id for one in told if one.shard_id in running}
    alive = alive or {shard: machine for shard, machine in running.items() if shard.startswith(replicas)}
    found = alive or {one.shard_id: one.machine_id for one in told}
    if not found:
        raise Failed(f"no engine of {model.model} was started lately: `llmgw explain {model.model}` says why")
    shard, machine_id = list(found.items())[-1]
    others = [one for one in found if one != shard] if alive else []
    state = "runs" if alive else "has ended"
    more = f"; others that run: {_some(others)}" if others else ""
    say(f"{shard} on {machine_id}, which {state}{more}", err=True)
    return machine_id, shard


async def _told(cluster: Cluster, subjects: str, since: int) -> list[ShardEvent]:
    """What was told of shards after a sequence of the log, in order."""
    found: list[ShardEvent] = []

    async def keep(delivery: Delivery) -> None:
        if isinstance(delivery.message, ShardEvent):
            found.append(delivery.message)

    follower = await cluster.bus.follow("EVENTS", [subjects], keep, start=since)
    try:
        async with asyncio.timeout(READ_S):
            await follower.caught_up.wait()
    except TimeoutError:
        raise Failed(f"the log was not read within {READ_S:g} s: is the cluster busy?") from None
    finally:
        await follower.stop()
    return found


def _some(names: Iterable[str]) -> str:
    known = sorted(names)
    return ", ".join(known[:20]) + (", …" if len(known) > 20 else "") if known else "none"
