"""``llmgw plan``, and ``apply --dry-run``, which is the same: what a change would do, without making it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cli.cluster import Cluster, on_cluster, problem_words
from cli.declared import SECTIONS, Item, Kind, kinds_held, read
from cli.failure import Failed
from cli.log import events_until, last_samples, last_sequence
from cli.names import completed, models, nodes
from cli.owners import current, everything, examined
from cli.say import say
from cli.steps import Step, pruning, steps_to, still_used, unknown_policies
from libs.events.commands import DefineModel, DrainNode, RemoveModel, StopModel
from libs.events.contract import Command
from libs.events.refusal import Refused
from libs.events.tenancy import OrgSpec, ProjectSpec, TeamSpec
from services.entry import fold_events

if TYPE_CHECKING:
    from services.entry import WhatIf

MARKS = {"add": "+", "change": "~", "remove": "-"}
MOVE_MARKS = {"start": "+", "stop": "-", "tell": " "}
PLACED = (DefineModel, RemoveModel)
"""Commands that change what runs where."""

prune_option = click.option(
    "--prune",
    is_flag=True,
    help="Also remove what no file declares, of the kinds whose sections the files have; prices stay.",
)


class StepDone(msgspec.Struct, frozen=True, kw_only=True):
    """A step and what became of it, for ``--json``."""

    action: str
    kind: str
    name: str
    changes: tuple[Any, ...]
    status: str
    """``planned``, ``done``, ``unchanged``, ``refused``, ``failed`` or ``not tried``."""
    message: str = ""

    @classmethod
    def of(cls, step: Step, status: str, message: str = "") -> StepDone:
        """A step with this status."""
        return cls(
            action=step.action, kind=step.kind, name=step.name, changes=step.changes, status=status, message=message
        )


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done: steps that files ask for, commands without a file, and machines that are lost."""

    steps: tuple[Step, ...] = ()
    commands: tuple[Command, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def placing(self) -> tuple[Command, ...]:
        """The commands that change what runs where. Of weights that an earlier step imports nothing is known yet."""
        steps = (step.command for step in self.steps if isinstance(step.command, PLACED) and not step.awaits)
        return (*steps, *self.commands)

    @property
    def unforeseen(self) -> tuple[str, ...]:
        """Models of which it is not known yet where they would run."""
        return tuple(step.name for step in self.steps if isinstance(step.command, PLACED) and step.awaits)


@click.command("plan")
@click.option(
    "-f", "--file", "files", multiple=True, type=click.Path(dir_okay=False, allow_dash=True),
    help="As if `llmgw apply` were given it; `-` reads standard input. May be repeated.",
)  # fmt: skip
@prune_option
@click.option(
    "--remove", "removed", multiple=True, metavar="MODEL", shell_complete=completed(models),
    help="As if this model were removed.",
)  # fmt: skip
@click.option(
    "--stop", "stopped", multiple=True, metavar="MODEL", shell_complete=completed(models),
    help="As if this model were stopped.",
)  # fmt: skip
@click.option(
    "--drain", "drained", multiple=True, metavar="NODE", shell_complete=completed(nodes),
    help="As if this node were drained.",
)  # fmt: skip
@click.option(
    "--lose", "lost", multiple=True, metavar="NODE", shell_complete=completed(nodes), help="As if this node were lost."
)
@on_cluster
async def plan(
    cluster: Cluster,
    files: tuple[str, ...],
    prune: bool,
    removed: tuple[str, ...],
    stopped: tuple[str, ...],
    drained: tuple[str, ...],
    lost: tuple[str, ...],
) -> None:
    """What a change would do, without making it: what would differ, and what would start, stop and move, and why.

    That is worked out on the log of this cluster as it is now, as if machines obeyed at once.
    """
    if not (files or removed or stopped or drained or lost):
        raise click.UsageError("no change is named: give a file, --stop, --remove, --drain or --lose")
    commands: list[Command] = [StopModel(model=name) for name in stopped]
    commands += [RemoveModel(model=name) for name in removed]
    commands += [DrainNode(machine_id=name) for name in drained]
    steps = await declared_steps(cluster, files, pruned=prune) if files else ()
    await show_plan(cluster, Change(steps=steps, commands=tuple(commands), lost=lost))


async def declared_steps(cluster: Cluster, files: Sequence[str], *, pruned: bool) -> tuple[Step, ...]:
    """What must be done so that everything is as files declare it. ``pruned``: also without what no file declares.

    Raises BadFile with all that is wrong with how they are written, or else with all that the cluster would refuse.
    """
    contents = list(texts(files))
    items = read(contents)
    for file, text in contents:
        if not kinds_held([(file, text)]):
            say(f"{file} declares nothing: it has none of the sections {', '.join(SECTIONS)}", err=True)
    now = await everything(cluster) if pruned else await current(cluster, kinds_needed(items))
    policies = {item.name for item in items if item.kind == "policy"} | {policy.name for policy in now.policies}
    steps = steps_to(items, now) + (pruning(items, kinds_held(contents), now) if pruned else [])
    faults = unknown_policies(items, policies) + still_used(steps, items, now)
    return tuple(await examined(cluster, steps, faults))


def kinds_needed(items: Iterable[Item]) -> set[Kind]:
    """The kinds one must know of what there is to say what these items change."""
    needed: set[Kind] = set()
    for item in items:
        needed.add(item.kind)
        if isinstance(item.spec, OrgSpec | TeamSpec | ProjectSpec) and item.spec.allowance.policies:
            needed.add("policy")
    return needed


def texts(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """File names and contents. Raises Failed."""
    for file in files:
        try:
            yield (file, sys.stdin.read() if file == "-" else Path(file).read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise Failed(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None


async def show_plan(cluster: Cluster, change: Change) -> None:
    """Print what a change would do. Raises Failed where it would be refused."""
    if not (change.steps or change.commands or change.lost):
        cluster.out.result({"steps": ()}, ["nothing to do: everything is as declared"])
        return
    follows = await foreseen(cluster, change)
    value = {"steps": [StepDone.of(step, "planned") for step in change.steps]}
    value |= {name: getattr(follows, name) for name in follows.__struct_fields__} if follows is not None else {}
    cluster.out.result(value, plan_lines(change, follows))


async def foreseen(cluster: Cluster, change: Change) -> WhatIf | None:
    """What would start, stop and move; None where the change has nothing to do with that. Raises Failed."""
    if not (change.placing or change.lost):
        return None
    events = await events_until(cluster, await last_sequence(cluster, "EVENTS"))
    samples = await last_samples(cluster)
    try:
        return fold_events(events).what_if(change.placing, change.lost, samples, datetime.now(UTC))
    except Refused as refused:
        problems = "\n".join(f"  {problem_words(problem)}" for problem in refused.problems)
        raise Failed(f"the change would be refused, because of\n{problems}") from None


def plan_lines(change: Change, follows: WhatIf | None) -> Iterator[str]:
    """A plan for a person."""
    if change.steps:
        yield from step_lines(change.steps)
    for model in change.unforeseen:
        yield f"where {model} would run can be said once its weights are in the library"
    if follows is not None:
        yield from ([""] if change.steps else [])
        yield from follow_lines(follows)


def step_lines(steps: Iterable[Step]) -> Iterator[str]:
    """What is added, changed and removed, with before and after."""
    counts = {"add": 0, "change": 0, "remove": 0}
    for step in steps:
        counts[step.action] += 1
        yield f"{MARKS[step.action]} {step.kind} {step.name}"
        for change in step.changes if step.action != "remove" else ():
            if step.action == "add":
                yield f"    {change.path}: {change.after}"
            else:
                yield f"    {change.path}: {change.before or '(none)'} -> {change.after or '(none)'}"
    yield f"{counts['add']} to add, {counts['change']} to change, {counts['remove']} to remove"


def follow_lines(follows: WhatIf) -> Iterator[str]:
    """What would start, stop and move."""
    if follows.underway:
        yield "under way already:"
        yield from (f"  {MOVE_MARKS[move.what]} {move.sentence}" for move in follows.underway)
    if not follows.moves:
        yield "nothing would start, stop or move"
    else:
        yield "what follows:"
        yield from (f"  {MOVE_MARKS[move.what]} {move.sentence}" for move in follows.moves)
        starts = sum(move.what == "start" for move in follows.moves)
        stops = sum(move.what == "stop" for move in follows.moves)
        yield f"{starts} to start, {stops} to stop, worked out on the log up to #{follows.position}"
    for model in follows.models:
        why = f" ({model.state}: {model.reason})" if model.reason else ""
        yield f"model {model.model}: {model.ready_before} -> {model.ready_after} of {model.wanted} ready{why}"
