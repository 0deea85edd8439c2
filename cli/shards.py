"""``llmgw shard …``: the parts of replicas, each with an engine on one node."""

from __future__ import annotations

import click
import msgspec

from cli.cluster import Cluster, on_cluster
from cli.failure import Failed
from cli.log import last_samples
from cli.logs import shard_logs
from cli.names import completed, nodes, shard_name
from cli.node_operations import carried_out, patience, reasoned
from cli.watch import watch_option
from libs.events.node import Errand
from libs.events.questions import ListModels, ListNodes, ModelsAnswer, NodesAnswer


class ShardLine(msgspec.Struct, frozen=True, kw_only=True):
    """A shard, whose it is, and what its node last measured of its engine."""

    shard_id: str
    replica_id: str
    model: str
    machine_id: str
    state: str
    """Of its replica."""
    rss_mb: int | None
    cpu_cores: float | None
    running: int | None
    """Requests its engine works on."""
    waiting: int | None


@click.group()
def shard() -> None:
    """Shards: the parts of a replica, an engine on one node each."""


shard.add_command(shard_logs)


async def shard_lines(cluster: Cluster) -> list[ShardLine]:
    """Every shard that runs, by node. Raises Failed."""
    views = (await cluster.ask(ListModels(), ModelsAnswer)).models
    replicas = {replica.replica_id: (view.model, replica.state) for view in views for replica in view.replicas}
    samples = {sample.shard_id: sample for machine in await last_samples(cluster) for sample in machine.shards}
    lines = []
    for node in (await cluster.ask(ListNodes(), NodesAnswer)).nodes:
        for shard_id in node.shards:
            replica_id = shard_id.rpartition("-")[0]
            model, state = replicas.get(replica_id, ("", "ended"))
            sample = samples.get(shard_id)
            lines.append(
                ShardLine(
                    shard_id=shard_id,
                    replica_id=replica_id,
                    model=model,
                    machine_id=node.machine_id,
                    state=state,
                    rss_mb=sample.rss_mb if sample is not None else None,
                    cpu_cores=sample.cpu_cores if sample is not None else None,
                    running=sample.running if sample is not None else None,
                    waiting=sample.waiting if sample is not None else None,
                )
            )
    return lines


async def shard_line(cluster: Cluster, name: str) -> ShardLine:
    """A shard that runs. Raises Failed."""
    lines = await shard_lines(cluster)
    shard = next((line for line in lines if line.shard_id == name), None)
    if shard is None:
        running = ", ".join(line.shard_id for line in lines) or "none"
        raise Failed(f"no shard {name!r} runs: those that run are {running}")
    return shard


@shard.command("list")
@click.option("--node", "on_node", metavar="NODE", shell_complete=completed(nodes), help="Only on this node.")
@watch_option
@on_cluster
async def list_shards(cluster: Cluster, on_node: str | None) -> None:
    """Every shard that runs, and what its engine does."""
    lines = [line for line in await shard_lines(cluster) if on_node in (None, line.machine_id)]
    columns = [("SHARD", "shard_id"), ("MODEL", "model"), ("NODE", "machine_id"), ("STATE", "state")]
    columns += [("MEMORY MB", "rss_mb"), ("CORES", "cpu_cores"), ("REQUESTS", "running"), ("WAITING", "waiting")]
    cluster.out.rows(lines, columns, "no shard runs")


@shard.command("show")
@shard_name
@watch_option
@on_cluster
async def show(cluster: Cluster, name: str) -> None:
    """One shard that runs."""
    line = await shard_line(cluster, name)
    cluster.out.result(
        line,
        [
            f"shard {name} of replica {line.replica_id} of {line.model}, on {line.machine_id}: {line.state}",
            *(
                f"  {what}: {value:,g}"
                for what, value in (
                    ("memory MB", line.rss_mb),
                    ("CPU cores", line.cpu_cores),
                    ("requests", line.running),
                    ("waiting", line.waiting),
                )
                if value is not None
            ),
        ],
    )


@shard.command("restart")
@shard_name
@reasoned
@patience
@on_cluster
async def restart(cluster: Cluster, name: str, reason: str, timeout_s: float) -> None:
    """Restart the engine of a shard, once its requests are done (30 s at most)."""
    line = await shard_line(cluster, name)
    await carried_out(cluster, line.machine_id, Errand(kind="restart_shard", shard_id=name), reason, timeout_s)
