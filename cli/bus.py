"""``llmgw bus …``: what must be there before services can speak."""

from __future__ import annotations

from pathlib import Path

import click

from cli.cluster import Cluster, on_cluster
from cli.confirm import confirm, yes_option
from cli.failure import Failed
from cli.output import Output, json_option
from cli.times import DURATION
from libs.bus import BusError, NoRoom, ensure
from libs.bus.identities import GRANTS, authorization, ensure_seed, grants, machine_of, node_identity, users_in
from libs.bus.topology import LEAST_USAGE_BYTES, RECORD_BYTES
from libs.runtime.secrets import BadSecret, fleet_secret

AWAY_S = 86400.0
"""How long PostgreSQL may be away where --away is not given."""


@click.group()
def bus() -> None:
    """The bus: its streams and its identities."""


@bus.command("init")
@click.option(
    "--copies",
    type=click.Choice(["1", "3", "5"]),
    help="Servers that keep every stream.  [default: as many as do; 1 at first]",
)
@click.option(
    "--requests-per-s",
    type=click.FloatRange(0.1, 1_000_000),
    help="Size the stream of usage for so many requests a second while PostgreSQL is away.",
)
@click.option("--away", "away_s", type=DURATION, help="How long PostgreSQL may be away.  [default: 1d]")
@on_cluster
async def init(cluster: Cluster, copies: str | None, requests_per_s: float | None, away_s: float | None) -> None:
    """Create or update every stream, bucket and consumer. Changes nothing that is as it should be.

    Usage that PostgreSQL has not taken in waits in a stream. It holds what it was sized to, or 4 GiB, or as much as the
    disk has room for; when it is full, gateways keep usage in their spools, and refuse requests when those are full.
    """
    if away_s is not None and requests_per_s is None:
        raise click.UsageError("--away says how long usage is kept at --requests-per-s: give both")
    usage_bytes = None
    if requests_per_s is not None:
        wanted = int(requests_per_s * (AWAY_S if away_s is None else away_s) * RECORD_BYTES)
        usage_bytes = max(wanted, LEAST_USAGE_BYTES)
    try:
        done = await ensure(cluster.bus, int(copies) if copies else None, usage_bytes)
    except NoRoom as error:
        raise Failed(f"{error}. Give it a larger disk, or name fewer --requests-per-s or a shorter --away") from None
    except BusError as error:
        raise Failed(f"the bus is not as it must be: {error}") from None
    cluster.out.result({"done": done}, done or ["nothing to do: every stream, bucket and consumer is there"])


@bus.command("identities")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--node", "added", multiple=True, help="Machine id of a node agent to add; may be repeated.")
@click.option("--remove-node", "removed", multiple=True, help="Machine id of one to lock out; may be repeated.")
@yes_option
@json_option
def identities(directory: Path, added: tuple[str, ...], removed: tuple[str, ...], yes: bool, out: Output) -> None:
    """Make what is missing of: a seed for each service in DIRECTORY/SERVICE/SERVICE.nk, for each node in
    DIRECTORY/node/node-ID.nk, and the fleet secret in DIRECTORY/fleet/fleet.secret. Write DIRECTORY/nats/users.conf:
    who may say and hear what, for nats-server to include. A node that is in it, or whose seed is here, stays."""
    if removed and not yes:
        confirm(f"lock out {', '.join(removed)} and remove their seeds")
    users = directory / "nats" / "users.conf"
    try:
        known = users_in(users.read_text()) if users.exists() else {}
        seeds = {path.stem: path for path in (directory / "node").glob("node-*.nk")}
        nodes = {machine_of(name): name for name in (*known, *seeds) if name not in GRANTS}
        for machine_id in removed:
            if machine_id in added:
                raise Failed(f"--node and --remove-node both name {machine_id}: name it once")
            if machine_id not in nodes:
                there = ", ".join(sorted(nodes)) or "none"
                raise Failed(f"no node is called {machine_id} in {directory} (there are: {there})")
            del nodes[machine_id]
        allowed = grants([*nodes, *added])
        keys = {}
        for name in allowed:
            path = directory / (name if name in GRANTS else "node") / f"{name}.nk"
            # A node's seed may have been moved to its machine.
            keys[name] = known[name] if name in known and not path.exists() else ensure_seed(path)
        fleet_secret(directory / "fleet" / "fleet.secret")
        users.parent.mkdir(parents=True, exist_ok=True)
        beside = users.with_name(f".{users.name}.new")
        beside.write_text(authorization(keys, allowed))
        beside.replace(users)
        # Last: what fails before leaves a node that can still be removed.
        for machine_id in removed:
            (directory / "node" / f"{node_identity(machine_id)}.nk").unlink(missing_ok=True)
    except (BadSecret, OSError, ValueError) as error:
        raise Failed(f"the identities in {directory} cannot be made: {error}") from None
    lines = [f"{name}: {key}" for name, key in keys.items()]
    if removed:
        reload = "send it SIGHUP (`sudo systemctl kill --signal=HUP nats-server`)"
        lines.append(f"{', '.join(removed)}: locked out once nats-server has read {users} anew: {reload}")
    out.result({"identities": keys}, lines)
