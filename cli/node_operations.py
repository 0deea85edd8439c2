"""``llmgw node restart``, ``change`` and ``remove-weights``: what a node's agent is asked to do once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import click
import msgspec
import yaml

from cli.cluster import Cluster, on_cluster
from cli.confirm import destroys
from cli.failure import Failed
from cli.names import node_name, version_name
from cli.times import DURATION, written
from libs.bus import Delivery
from libs.events.commands import GiveErrand
from libs.events.machine import MachineErrandEnded
from libs.events.node import Errand
from libs.events.subjects import pattern_of

patience = click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default="2m",
    show_default=True,
    help="Time to wait at most for the node to say how it ended; it goes on all the same.",
)
reasoned = click.option("--reason", default="", help="Kept in the log.")


@click.command("restart")
@node_name
@reasoned
@patience
@on_cluster
async def restart(cluster: Cluster, name: str, reason: str, timeout_s: float) -> None:
    """Restart a node's agent, which touches no engine (one of those: `llmgw shard restart`)."""
    await carried_out(cluster, name, Errand(kind="restart_agent"), reason, timeout_s)


@click.command("change")
@node_name
@click.argument("changes", metavar="SETTING=VALUE...", nargs=-1, required=True)
@reasoned
@patience
@on_cluster
async def change(cluster: Cluster, name: str, changes: tuple[str, ...], reason: str, timeout_s: float) -> None:
    """Change settings of a node's agent, at once and for good; engines are not touched.

    Values are YAML: `stop_grace_s=30`, `labels={zone: b}`. `SETTING=` goes back to what the agent's own settings say.
    """
    await carried_out(cluster, name, Errand(kind="change_settings", settings=read(changes)), reason, timeout_s)


@click.command("remove-weights")
@node_name
@version_name
@reasoned
@patience
@destroys("remove the weights {weights} from node {name}")
@on_cluster
async def remove_weights(cluster: Cluster, name: str, weights: str, reason: str, timeout_s: float) -> None:
    """Remove a node's copy of weights that no shard there uses (`llmgw node show NODE` lists what it holds)."""
    await carried_out(cluster, name, Errand(kind="remove_weights", weights=weights), reason, timeout_s)


def read(changes: tuple[str, ...]) -> dict[str, str]:
    """Setting to its value as JSON. Raises Failed."""
    values: dict[str, str] = {}
    for change in changes:
        setting, sign, text = change.partition("=")
        if not sign or not setting:
            raise Failed(f"{change!r} is not a change: state SETTING=VALUE")
        try:
            values[setting] = msgspec.json.encode(yaml.safe_load(text)).decode() if text else ""
        except (yaml.YAMLError, TypeError) as error:
            raise Failed(f"{setting}: {text!r} is not a YAML value: {error}") from None
    return values


async def carried_out(cluster: Cluster, name: str, errand: Errand, reason: str, timeout_s: float) -> None:
    """Give an errand and tell how it ended. Raises Failed when it was not done, or not told within the time."""
    outcome = await cluster.send(GiveErrand(machine_id=name, errand=errand, reason=reason))
    number = outcome.sequence
    if number is None:
        raise Failed(f"{name} was asked for this before and has not ended it: `llmgw node show {name}`")
    has_ended = asyncio.Event()
    ends: list[MachineErrandEnded] = []

    async def heard(delivery: Delivery) -> None:
        if isinstance(delivery.message, MachineErrandEnded) and delivery.message.errand == number:
            ends.append(delivery.message)
            has_ended.set()

    subject = pattern_of(MachineErrandEnded, machine_id=name)
    follower = await cluster.bus.follow("EVENTS", [subject], heard, start=number)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(has_ended.wait(), timeout_s)
    finally:
        await follower.stop()
    if not ends:
        raise Failed(
            f"{name} has not said within {written(timeout_s)} how it ended (#{number}). It goes on: "
            f"`llmgw node show {name}` shows it for as long as it is open"
        )
    end = ends[0]
    if end.outcome != "done":
        raise Failed(f"{name}: {end.outcome}: {end.reason}")
    cluster.out.result(end, [f"{name}: done: {end.reason}"])
