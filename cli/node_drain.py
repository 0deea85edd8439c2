"""``llmgw node drain``, and what is said of nodes that are to be empty."""

from __future__ import annotations

import asyncio
import time

import click

from cli.cluster import Cluster, on_cluster
from cli.confirm import confirm, yes_option
from cli.failure import Failed
from cli.names import node_name
from cli.times import DURATION, written
from libs.events.commands import DrainNode
from libs.events.questions import ListNodes, NodesAnswer
from libs.events.views import NodeView

LOOK_S = 1.0
"""How often a node that is waited for is looked at."""


@click.command("drain")
@node_name
@click.option("--reason", default="", help="Kept in the log.")
@click.option("--force", is_flag=True, help="Stop what has nowhere to go.")
@click.option("--wait", is_flag=True, help="Return when nothing runs there any more.")
@click.option("--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, help="Time to wait at most.")
@yes_option
@on_cluster
async def drain(cluster: Cluster, name: str, reason: str, force: bool, wait: bool, timeout_s: float, yes: bool) -> None:
    """Give a node nothing new and move away what runs there: its successor serves before it stops."""
    if force and not yes:
        confirm(f"drain node {name} and stop what has nowhere to go")
    outcome = await cluster.send(DrainNode(machine_id=name, reason=reason, force=force))
    if not wait:
        return cluster.out.result(outcome, [outcome.message or f"{name} is being drained"])
    deadline, shown = time.monotonic() + timeout_s, ""
    while (node := await _node(cluster, name)).shards:
        if node.reason != shown:
            shown = node.reason
            cluster.out.event(node, said_of(node))
        if time.monotonic() >= deadline:
            raise Failed(f"{said_of(node)}; after {written(timeout_s)} it is not empty (`--force` stops what is left)")
        await asyncio.sleep(LOOK_S)
    cluster.out.event(node, f"{name} is empty")
    return None


async def _node(cluster: Cluster, name: str) -> NodeView:
    nodes = (await cluster.ask(ListNodes(), NodesAnswer)).nodes
    node = next((node for node in nodes if node.machine_id == name), None)
    if node is None:
        raise Failed(f"{name} is not there any more")
    return node


def said_of(node: NodeView) -> str:
    """Its state, and why."""
    return f"{node.machine_id} is {node.state}" + (f": {node.reason}" if node.reason else "")


def free_gpus(node: NodeView) -> str:
    """Which of its cards new work may go to."""
    if len(node.gpus_free) == len(node.gpus):
        return "all free"
    return f"free: {', '.join(map(str, node.gpus_free))}" if node.gpus_free else "none free"
