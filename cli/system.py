"""``llmgw system …``: all models at once."""

from __future__ import annotations

import click

from cli.cluster import Cluster, on_cluster
from cli.confirm import destroys
from libs.events.commands import StartSystem, StopSystem


@click.group()
def system() -> None:
    """All models at once: stop them, start them."""


@system.command("stop")
@click.option("--reason", default="", help="Told to everybody who asks a model.")
@destroys("stop every model of the cluster")
@on_cluster
async def stop(cluster: Cluster, reason: str) -> None:
    """Stop every model; what each of them wants is kept."""
    outcome = await cluster.send(StopSystem(reason=reason))
    cluster.out.result(outcome, [outcome.message or "the system is stopped: start it with `llmgw system start`"])


@system.command("start")
@on_cluster
async def start(cluster: Cluster) -> None:
    """Serve again."""
    outcome = await cluster.send(StartSystem())
    cluster.out.result(outcome, [outcome.message or "the system serves again"])
