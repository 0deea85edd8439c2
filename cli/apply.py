"""``llmgw apply`` and ``llmgw export``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence

import click
import yaml

from cli.cluster import Cluster, on_cluster, outcome_words
from cli.confirm import confirm, yes_option
from cli.failure import Failed
from cli.library import bring
from cli.owners import current, field_of
from cli.plan import MARKS, Change, StepDone, declared_steps, foreseen, plan_lines, prune_option, show_plan
from cli.say import say
from cli.steps import Step, document, sections
from cli.without_place import without_place
from libs.events.commands import DefineModel, ImportVersion, Outcome
from libs.events.sentences.words import count

HEARD_S = 10.0
"""Within this an owner hears what another one did."""


@click.command()
@click.option(
    "-f", "--file", "files", required=True, multiple=True, type=click.Path(dir_okay=False, allow_dash=True),
    help="YAML; `-` reads standard input. May be repeated.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what it would do, as `llmgw plan` does.")
@yes_option
@prune_option
@on_cluster
async def apply(cluster: Cluster, files: tuple[str, ...], dry_run: bool, yes: bool, prune: bool) -> None:
    """Make models, policies, tenancy, prices and the library be as files declare them."""
    change = Change(steps=await declared_steps(cluster, files, pruned=prune))
    if dry_run or not change.steps:
        await show_plan(cluster, change)
        return
    if not yes:
        for line in plan_lines(change, await foreseen(cluster, change)):
            say(line, err=True)
        confirm("apply this")
    await carry_out(cluster, change.steps)


async def carried_out(cluster: Cluster, step: Step) -> tuple[str, str]:
    """A step's status, and why it failed where it did. Raises Failed."""
    if isinstance(step.command, ImportVersion):
        imported = await bring(cluster, step.command)
        return imported.status, imported.message
    end = time.monotonic() + HEARD_S
    outcome = await cluster.try_to(step.command)
    while step.awaits and too_early(outcome, step) and time.monotonic() < end:
        await asyncio.sleep(0.1)
        outcome = await cluster.try_to(step.command)
    return outcome.status, outcome_words(outcome) if outcome.status in ("refused", "failed") else ""


def too_early(outcome: Outcome, step: Step) -> bool:
    """Whether an owner may only have refused because it has yet to hear what an earlier step did at another one."""
    return outcome.status == "refused" and all(field_of(problem.path) in step.awaits for problem in outcome.problems)


async def carry_out(cluster: Cluster, steps: Sequence[Step]) -> None:
    """Send one command after another. Raises Failed at the first that is not done, saying what was and was not."""
    results: list[StepDone] = []
    for number, step in enumerate(steps):
        what = f"{step.kind} {step.name}"
        try:
            status, failure = await carried_out(cluster, step)
        except Failed as error:
            failure, status = error.message, "failed"
        results.append(StepDone.of(step, status, failure))
        if failure:
            results += [StepDone.of(later, "not tried") for later in steps[number + 1 :]]
            cluster.out.result({"steps": results}, done_lines(results))
            later = len(steps) - number - 1
            raise Failed(
                f"{what} was not applied: {failure}\n  {count(number, 'step')} before it done, {later} after it not"
            )
    placed = [step.name for step in steps if isinstance(step.command, DefineModel)]
    cluster.out.result({"steps": results}, [*done_lines(results), *await without_place(cluster, placed)])


def done_lines(results: Iterable[StepDone]) -> Iterator[str]:
    """Each step and what became of it."""
    for step in results:
        yield f"{MARKS[step.action]} {step.kind} {step.name}: {step.status}"


@click.command()
@on_cluster
async def export(cluster: Cluster) -> None:
    """Write what is declared now, in the format of apply: `llmgw export | llmgw apply -f - --yes` changes nothing."""
    declared = document(sections(await current(cluster)))
    cluster.out.result(declared, [yaml.safe_dump(declared, sort_keys=False, allow_unicode=True, width=110).rstrip()])
