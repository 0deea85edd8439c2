"""``llmgw plan``: what would follow from a change, worked out on today's log without touching anything."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from cli.apply import texts
from cli.cluster import Cluster, on_cluster
from cli.declared import KINDS, Item, read
from cli.events import last_sequence
from cli.failure import Failed
from cli.past import events_until, last_samples
from cli.say import say
from libs.events.commands import DefineModel, DrainNode, RemoveModel, StopModel
from libs.events.contract import Command
from libs.events.model import ModelSpec
from libs.events.refusal import Refused
from services.entry import fold_events

if TYPE_CHECKING:
    from services.entry import WhatIf

MARKS = {"start": "+", "stop": "-", "tell": " "}


@click.command("plan")
@click.option(
    "-f", "--file", "files", multiple=True, type=click.Path(dir_okay=False, allow_dash=True),
    help="Models as `llmgw apply` would take them; `-` reads standard input. May be repeated.",
)  # fmt: skip
@click.option("--remove", "removed", multiple=True, metavar="MODEL", help="As if this model were removed.")
@click.option("--stop", "stopped", multiple=True, metavar="MODEL", help="As if this model were stopped.")
@click.option("--drain", "drained", multiple=True, metavar="NODE", help="As if this node were drained.")
@click.option("--lose", "lost", multiple=True, metavar="NODE", help="As if this node were lost.")
@on_cluster
async def plan(
    cluster: Cluster,
    files: tuple[str, ...],
    removed: tuple[str, ...],
    stopped: tuple[str, ...],
    drained: tuple[str, ...],
    lost: tuple[str, ...],
) -> None:
    """What would start, stop and move, and why, if a change were made: on the log of this cluster as it is now.

    Everything is done as if machines obeyed at once; nothing is changed.
    """
    items = read(texts(files))
    others = sorted({item.kind for item in items if not isinstance(item.spec, ModelSpec)}, key=KINDS.index)
    if others:
        # On stderr: what is printed is the plan.
        say(f"not looked at, because only models are placed: {', '.join(others)}", err=True)
    commands: list[Command] = [DefineModel(spec=item.spec) for item in items if isinstance(item.spec, ModelSpec)]
    commands += [StopModel(model=name) for name in stopped]
    commands += [RemoveModel(model=name) for name in removed]
    commands += [DrainNode(machine_id=name) for name in drained]
    if not commands and not lost:
        none = f"{', '.join(files)} declares no model" if files else "no change is named"
        raise Failed(f"there is nothing to try, {none}: give a file with models, --stop, --remove, --drain or --lose")
    events = await events_until(cluster, await last_sequence(cluster, "EVENTS"))
    try:
        found = fold_events(events).what_if(commands, lost, await last_samples(cluster), datetime.now(UTC))
    except Refused as refused:
        raise Failed(_refusal(items, refused)) from None
    cluster.out.one(found, lines(found))


def _refusal(items: list[Item], refused: Refused) -> str:
    said = [f"{one.path}: {one.message}" if one.path else one.message for one in refused.problems]
    files = sorted({item.place.file for item in items})
    where = f" of {', '.join(files)}" if files else ""
    return f"the change{where} would be refused, because of\n" + "\n".join(f"  {one}" for one in said)


def lines(found: WhatIf) -> Iterator[str]:
    """A plan for a person."""
    if found.underway:
        yield "under way already:"
        yield from (f"  {MARKS[move.what]} {move.sentence}" for move in found.underway)
    if not found.moves:
        yield "nothing would start, stop or move"
    else:
        yield "the change:"
        yield from (f"  {MARKS[move.what]} {move.sentence}" for move in found.moves)
        starts = sum(move.what == "start" for move in found.moves)
        stops = sum(move.what == "stop" for move in found.moves)
        yield f"{starts} to start, {stops} to stop, worked out on the log up to #{found.position}"
    for model in found.models:
        yield (
            f"model {model.model}: {model.ready_before} -> {model.ready_after} of {model.wanted} ready"
            + (f" ({model.state}: {model.reason})" if model.reason else "")
        )
