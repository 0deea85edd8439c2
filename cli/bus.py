"""``llmgw bus …``: what must be there before services can speak."""

from __future__ import annotations

from pathlib import Path

import click

from cli.cluster import Cluster, on_cluster
from cli.failure import Failed
from cli.output import Output, json_option
from libs.bus import BusError, ensure
from libs.bus.identities import GRANTS, authorization, ensure_seed, grants
from libs.runtime.secrets import fleet_secret


@click.group()
def bus() -> None:
    """The bus: its streams and its identities."""


@bus.command("init")
@click.option(
    "--replicas", type=click.Choice(["1", "3", "5"]), default="1", show_default=True, help="Copies of every stream."
)
@on_cluster
async def init(cluster: Cluster, replicas: str) -> None:
    """Create or update every stream, bucket and consumer. Changes nothing that is as it should be."""
    try:
        done = await ensure(cluster.bus, int(replicas))
    except BusError as error:
        raise Failed(f"the bus is not as it must be: {error}") from None
    cluster.out.one({"done": done}, done or ["nothing to do: every stream, bucket and consumer is there"])


@bus.command("identities")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--node", "machine_ids", multiple=True, help="Machine id of a node agent; may be repeated.")
@json_option
def identities(directory: Path, machine_ids: tuple[str, ...], out: Output) -> None:
    """Make what is missing of: a seed for each service in DIRECTORY/SERVICE/SERVICE.nk, for each node in
    DIRECTORY/node/node-ID.nk, and the fleet secret in DIRECTORY/fleet/fleet.secret. Write DIRECTORY/nats/users.conf:
    who may say and hear what, for nats-server to include."""
    allowed = grants(machine_ids)
    try:
        keys = {name: ensure_seed(directory / (name if name in GRANTS else "node") / f"{name}.nk") for name in allowed}
        fleet_secret(directory / "fleet" / "fleet.secret")
        users = directory / "nats" / "users.conf"
        users.parent.mkdir(parents=True, exist_ok=True)
        users.write_text(authorization(keys, allowed))
    except (OSError, ValueError) as error:
        raise Failed(f"the identities in {directory} cannot be made: {error}") from None
    out.one({"identities": keys}, [f"{name}: {key}" for name, key in keys.items()])
