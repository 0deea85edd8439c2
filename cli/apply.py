"""``llmgw apply`` and ``llmgw export``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from cli.cluster import Cluster, on_cluster, outcome_words
from cli.declared import BadFile, Kind, Weights, kinds_held, read
from cli.failure import Failed
from cli.headers import headers_of_models
from cli.library import bring
from cli.plan import Current, Step, document, plan, pruning, sections, still_used, unknown_policies
from cli.say import say
from libs.events.codec import encode
from libs.events.commands import DefineModel, ImportVersion, Outcome
from libs.events.questions import (
    ExamineAccounting,
    Examined,
    ExamineGuard,
    ExamineMirror,
    ExamineScheduler,
    LibraryAnswer,
    ListLibrary,
    ListModels,
    ListPolicies,
    ListTenancy,
    ModelsAnswer,
    PoliciesAnswer,
    TenancyAnswer,
)

EXAMINERS = {
    "library": ExamineMirror,
    "policy": ExamineGuard,
    "org": ExamineAccounting,
    "team": ExamineAccounting,
    "project": ExamineAccounting,
    "price": ExamineAccounting,
    "model": ExamineScheduler,
}
MARKS = {"add": "+", "change": "~", "remove": "-"}
HEARD_S = 10.0
"""Within this an owner hears what another one did."""


class StepDone(msgspec.Struct, frozen=True, kw_only=True):
    """A step and what became of it, for ``--json``."""

    action: str
    kind: str
    name: str
    changes: tuple[Any, ...]
    status: str
    """``planned``, ``done``, ``unchanged``, ``refused``, ``failed`` or ``not tried``."""
    message: str = ""


@click.command()
@click.option(
    "-f", "--file", "files", required=True, multiple=True, type=click.Path(dir_okay=False, allow_dash=True),
    help="YAML; `-` reads standard input. May be repeated.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--prune",
    is_flag=True,
    help="Also remove what no file declares, of the kinds whose sections the files have; prices stay.",
)
@on_cluster
async def apply(cluster: Cluster, files: tuple[str, ...], dry_run: bool, yes: bool, prune: bool) -> None:
    """Make models, policies, tenancy, prices and the library be as files declare them."""
    read_texts = list(texts(files))
    items = read(read_texts)
    now = await current(cluster)
    pruned = kinds_held(read_texts) if prune else set[Kind]()
    policies = {one.name for one in items if one.kind == "policy"} | {one.name for one in now.policies}
    steps = plan(items, now) + pruning(items, pruned, now)
    faults = unknown_policies(items, policies) + still_used(steps, items, now)
    if faults:
        raise BadFile(faults)
    steps = await examined(cluster, steps)
    if not steps:
        cluster.out.one({"steps": []}, ["nothing to do: everything is as declared"])
        return
    if dry_run:
        cluster.out.one({"steps": [step_done(step, "planned") for step in steps]}, plan_lines(steps))
        return
    if not yes:
        for line in plan_lines(steps):
            say(line, err=True)
        if not confirmed(files):
            raise Failed("nothing was done: it was not confirmed")
    await carry_out(cluster, steps)


def confirmed(files: Sequence[str]) -> bool:
    """Ask whoever is at standard input. Raises Failed when nobody is."""
    nobody = Failed("nothing was done: there is nobody to ask, so say --yes (or --dry-run to only look)")
    if "-" in files:
        raise nobody
    try:
        return click.confirm("Apply this?", err=True)
    except click.Abort:
        raise nobody from None


def texts(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """File names and contents. Raises Failed."""
    for file in files:
        try:
            yield (file, sys.stdin.read() if file == "-" else Path(file).read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise Failed(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None


async def current(cluster: Cluster) -> Current:
    """What the owners say there is. Raises Failed."""
    models, tenancy, policies, library = await asyncio.gather(
        cluster.ask(ListModels(), ModelsAnswer),
        cluster.ask_all(ListTenancy(of=("org", "team", "project", "price")), TenancyAnswer),
        cluster.ask(ListPolicies(), PoliciesAnswer),
        cluster.ask(ListLibrary(), LibraryAnswer),
    )
    return Current(
        library=tuple(Weights(name=one.name, source=one.source, licence=one.licence) for one in library.entries),
        versions={one.name: tuple(one.versions) for one in library.entries},
        policies=policies.policies,
        orgs=tenancy.orgs,
        teams=tenancy.teams,
        projects=tenancy.projects,
        models=models.specs,
        prices=tenancy.prices,
        keys=tuple(key for key in tenancy.keys if not key.revoked),
    )


async def examined(cluster: Cluster, steps: Iterable[Step]) -> list[Step]:
    """The steps that would change something, after every owner looked at its own. Raises BadFile."""

    steps = list(steps)
    texts = [encode(step.command).decode() for step in steps]
    defined = [step.command.spec for step in steps if isinstance(step.command, DefineModel)]
    headers = await headers_of_models(cluster, defined)

    async def look(number: int, step: Step) -> Examined:
        before = zip(steps[:number], texts[:number], strict=True)
        after = tuple(text for earlier, text in before if matters(earlier, step))
        question = EXAMINERS[step.kind](command=texts[number], after=after)
        if isinstance(question, ExamineScheduler):
            question = msgspec.structs.replace(question, headers=headers.get(step.name))
        return await cluster.ask(question, Examined, timeout_s=15)

    wrong: list[str] = []
    kept: list[Step] = []
    for step, answer in zip(steps, await asyncio.gather(*map(look, range(len(steps)), steps)), strict=True):
        # What an earlier step adds is not there yet: about those fields the owner cannot know.
        problems = [one for one in answer.problems if field_of(one.path) not in step.awaits]
        for problem in problems:
            field = field_of(problem.path)
            where = f"{step.item.place.at(field)}: " if step.item else ""
            wrong.append(f"{where}{step.kind} {step.name}: {f'{field}: ' if field else ''}{problem.message}")
        if not answer.unchanged:
            kept.append(step)
    if wrong:
        raise BadFile(wrong)
    return kept


def matters(earlier: Step, step: Step) -> bool:
    """Whether a step's owner judges it otherwise after an earlier one: levels of one branch, names of models."""
    if EXAMINERS[earlier.kind] is not EXAMINERS[step.kind]:
        return False
    return step.kind == "model" or step.name == earlier.name or step.name.startswith(f"{earlier.name}/")


def field_of(path: str) -> str:
    """A problem's path in its command as the path in the file: ``spec.profiles[0].cores`` is ``profiles[0].cores``."""
    return path.removeprefix("spec").removeprefix("price").removeprefix(".")


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
    return outcome.status == "refused" and all(field_of(one.path) in step.awaits for one in outcome.problems)


async def carry_out(cluster: Cluster, steps: Sequence[Step]) -> None:
    """Send one command after another. Raises Failed at the first that is not done, saying what was and was not."""
    results: list[StepDone] = []
    for number, step in enumerate(steps):
        what = f"{step.kind} {step.name}"
        try:
            status, failure = await carried_out(cluster, step)
        except Failed as error:
            failure, status = error.message, "failed"
        results.append(step_done(step, status, failure))
        if failure:
            results += [step_done(later, "not tried") for later in steps[number + 1 :]]
            cluster.out.one({"steps": results}, done_lines(results))
            later = len(steps) - number - 1
            raise Failed(
                f"{what} was not applied: {failure}\n  {number} steps before it are done, {later} after it are not"
            )
    cluster.out.one({"steps": results}, done_lines(results))


def step_done(step: Step, status: str, message: str = "") -> StepDone:
    return StepDone(
        action=step.action, kind=step.kind, name=step.name, changes=step.changes, status=status, message=message
    )


def plan_lines(steps: Iterable[Step]) -> Iterator[str]:
    """The plan for a person: what is added, changed and removed, with before and after."""
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


def done_lines(results: Iterable[StepDone]) -> Iterator[str]:
    for one in results:
        yield f"{MARKS[one.action]} {one.kind} {one.name}: {one.status}"


@click.command()
@on_cluster
async def export(cluster: Cluster) -> None:
    """Write what is declared now, in the format of apply: `llmgw export | llmgw apply -f -` changes nothing."""
    declared = document(sections(await current(cluster)))
    cluster.out.one(declared, [yaml.safe_dump(declared, sort_keys=False, allow_unicode=True, width=110).rstrip()])
