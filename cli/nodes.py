"""``llmgw node …``."""

from __future__ import annotations

import click

from cli.cluster import Cluster, on_cluster
from cli.confirm import destroys
from cli.failure import Failed
from cli.logs import node_logs
from cli.names import node_name
from cli.node_drain import drain, free_gpus
from cli.node_operations import change, remove_weights, restart
from cli.numbers import Whole
from cli.watch import watch_option
from libs.events.commands import (
    CordonNode,
    LendNode,
    ReclaimNode,
    RetireNode,
    UncordonNode,
)
from libs.events.questions import (
    AskDoctor,
    AskFabricMap,
    DoctorAnswer,
    FabricMap,
    ListNodes,
    NodesAnswer,
)
from libs.events.sentences.words import count

LOOK_S = 60.0
"""A node that looks itself over waits for each of its tools."""

SCAN_S = 120.0
"""Mapping a fabric of thousands of ports takes so long."""


@click.group()
def node() -> None:
    """Nodes: the machines that run engines."""


for _command in (restart, change, remove_weights, drain, node_logs):
    node.add_command(_command)


@node.command("list")
@watch_option
@on_cluster
async def list_nodes(cluster: Cluster) -> None:
    """Every node, its state and what is free on it."""
    answer = await cluster.ask(ListNodes(), NodesAnswer)
    columns = [("NODE", "machine_id"), ("STATE", "state"), ("CORES", "cpu_count"), ("FREE", "cores_free")]
    columns += [
        ("MEMORY MB", "memory_total_mb"),
        ("FREE MB", "memory_free_mb"),
        ("GPUS", "gpus"),
        ("FREE GPUS", "gpus_free"),
    ]
    columns += [("RUNS", "shards"), ("WHY", "reason")]
    cluster.out.rows(answer.nodes, columns, "no node has registered: is a node agent running?")


@node.command("show")
@node_name
@watch_option
@on_cluster
async def show(cluster: Cluster, name: str) -> None:
    """One node: what it is, what runs there, which weights it holds, what is wrong with it."""
    nodes = (await cluster.ask(ListNodes(), NodesAnswer)).nodes
    view = next((node for node in nodes if node.machine_id == name), None)
    if view is None:
        raise Failed(f"there is no node {name!r}: there are {', '.join(n.machine_id for n in nodes) or 'none'}")
    kinds = ", ".join(sorted(set(view.gpus)))
    gpus = f", {count(len(view.gpus), 'GPU')} ({kinds}; {free_gpus(view)})" if view.gpus else ""
    lines = [
        f"{name}: {view.state} at {view.address}" + (f": {view.reason}" if view.reason else ""),
        f"  {view.cores_free} of {view.cpu_count} cores, {view.memory_free_mb:,} of {view.memory_total_mb:,} MB "
        f"free{gpus}",
    ]
    lines += [f"  label {label}: {value}" for label, value in view.labels.items()]
    lines += [f"  changed setting {setting}: {value}" for setting, value in view.changed_settings.items()]
    lines += [f"  runs {shard}" for shard in view.shards]
    lines += [f"  holds {held.weights} ({held.size_bytes / 1e9:.2f} GB)" for held in view.weights]
    lines += [f"  was asked (#{errand.number}) {errand.errand.kind.replace('_', ' ')}" for errand in view.errands]
    lines += [f"  problem: {problem}" for problem in view.problems]
    cluster.out.result(view, lines)


@node.command("cordon")
@node_name
@click.option("--reason", default="", help="Kept in the log.")
@on_cluster
async def cordon(cluster: Cluster, name: str, reason: str) -> None:
    """Give a node nothing new; what runs there stays."""
    outcome = await cluster.send(CordonNode(machine_id=name, reason=reason))
    cluster.out.result(outcome, [outcome.message or f"{name} is cordoned"])


@node.command("uncordon")
@node_name
@on_cluster
async def uncordon(cluster: Cluster, name: str) -> None:
    """Let a node take work again, after a cordon or a drain."""
    outcome = await cluster.send(UncordonNode(machine_id=name))
    cluster.out.result(outcome, [outcome.message or f"{name} takes work again"])


@node.command("lend")
@node_name
@click.option("--to", default="", help="Who gets it: a batch system, a colleague.")
@on_cluster
async def lend(cluster: Cluster, name: str, to: str) -> None:
    """Move away what runs on a node and leave it to somebody else."""
    outcome = await cluster.send(LendNode(machine_id=name, to=to))
    cluster.out.result(outcome, [outcome.message or f"{name} is lent{f' to {to}' if to else ''}"])


@node.command("reclaim")
@node_name
@on_cluster
async def reclaim(cluster: Cluster, name: str) -> None:
    """Take a lent node back."""
    outcome = await cluster.send(ReclaimNode(machine_id=name))
    cluster.out.result(outcome, [outcome.message or f"{name} takes work again"])


@node.command("retire")
@node_name
@click.option("--reason", default="", help="Kept in the log.")
@destroys("forget node {name} and what ran there")
@on_cluster
async def retire(cluster: Cluster, name: str, reason: str) -> None:
    """Know a lost node no more. It joins anew when its agent is back."""
    outcome = await cluster.send(RetireNode(machine_id=name, reason=reason))
    cluster.out.result(outcome, [outcome.message or f"{name} is known no more"])


@node.command("doctor")
@node_name
@on_cluster
async def doctor(cluster: Cluster, name: str) -> None:
    """What is wrong with a node by its own look, the most serious first (on the node itself: llmgw doctor).

    Exits with 1 when something is broken.
    """
    answer = await cluster.ask(AskDoctor(machine_id=name), DoctorAnswer, timeout_s=LOOK_S)
    lines = []
    for finding in answer.findings:
        lines.append(f"{finding.severity:<6}  {finding.subject}: {finding.found}")
        lines += [f"        {what}: {text}" for what, text in (("costs", finding.costs), ("fix", finding.fix)) if text]
    cluster.out.result(answer, lines)
    if any(finding.severity == "broken" for finding in answer.findings):
        raise click.exceptions.Exit(1)


@node.command("fabric")
@node_name
@click.argument("adapter", metavar="NIC")
@click.option("--port", type=Whole(1), default=1, show_default=True, help="Of the card, as it counts them.")
@on_cluster
async def fabric(cluster: Cluster, name: str, adapter: str, port: int) -> None:
    """The InfiniBand fabric as one network card of a node sees it: switches, who is where, slow cables."""
    question = AskFabricMap(machine_id=name, nic=adapter, port=port)
    fabric_map = await cluster.ask(question, FabricMap, timeout_s=SCAN_S)
    lines = [
        f"{fabric_map.cables} cables; " + ", ".join(f"{switch.name} ({switch.tier})" for switch in fabric_map.switches)
    ]
    lines += [f"rail {rail}: {', '.join(leaves)}" for rail, leaves in fabric_map.rails.items()]
    lines += [f"{nic.machine} {nic.nic}: {nic.leaf}" for nic in fabric_map.nics]
    lines += [
        f"SLOW {cable.one} - {cable.other}: {cable.link}, {cable.rate_gbps:g} of {cable.expected_gbps:g} Gb/s"
        for cable in fabric_map.slow_cables
    ]
    cluster.out.result(fabric_map, lines)
