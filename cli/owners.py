"""What the owners of models, tenancy, policies and the library say: what there is, and what they would take."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

import msgspec

from cli.cluster import Cluster
from cli.declared import KINDS, BadFile, Kind, Weights
from cli.headers import headers_of_models
from cli.steps import Current, Step
from libs.events.codec import encode
from libs.events.commands import DefineModel
from libs.events.questions import (
    ExamineAccounting,
    Examined,
    ExamineGuard,
    ExamineMirror,
    ExamineScheduler,
    Level,
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
LEVELS: tuple[Level, ...] = ("org", "team", "project", "price")


async def current(cluster: Cluster, kinds: Collection[Kind] = KINDS) -> Current:
    """What there is of these kinds. Only their owners are asked. Raises Failed."""

    async def models() -> ModelsAnswer:
        return await cluster.ask(ListModels(), ModelsAnswer) if "model" in kinds else ModelsAnswer(models=(), specs=())

    async def tenancy() -> TenancyAnswer:
        wanted = any(kind in kinds for kind in LEVELS)
        return await cluster.ask_all(ListTenancy(of=LEVELS), TenancyAnswer) if wanted else TenancyAnswer()

    async def policies() -> PoliciesAnswer:
        return await cluster.ask(ListPolicies(), PoliciesAnswer) if "policy" in kinds else PoliciesAnswer(policies=())

    async def library() -> LibraryAnswer:
        return await cluster.ask(ListLibrary(), LibraryAnswer) if "library" in kinds else LibraryAnswer(entries=())

    there, levels, rules, weights = await asyncio.gather(models(), tenancy(), policies(), library())
    return Current(
        library=tuple(
            Weights(name=entry.name, source=entry.source, licence=entry.licence) for entry in weights.entries
        ),
        versions={entry.name: tuple(entry.versions) for entry in weights.entries},
        policies=rules.policies,
        orgs=levels.orgs,
        teams=levels.teams,
        projects=levels.projects,
        models=there.specs,
        prices=levels.prices,
    )


async def everything(cluster: Cluster) -> Current:
    """What there is of all kinds, and the keys, which may name some of it. Raises Failed."""
    there, tenancy = await asyncio.gather(current(cluster), cluster.ask_all(ListTenancy(of=("key",)), TenancyAnswer))
    return msgspec.structs.replace(there, keys=tuple(key for key in tenancy.keys if not key.revoked))


async def examined(cluster: Cluster, steps: Iterable[Step], faults: Iterable[str] = ()) -> list[Step]:
    """The steps that would change something, after every owner looked at its own. Raises BadFile with what owners
    refuse after what was found wrong before.
    """
    steps = list(steps)
    texts = [encode(step.command).decode() for step in steps]
    defined = [step.command.spec for step in steps if isinstance(step.command, DefineModel)]
    headers = await headers_of_models(cluster, defined)

    async def examine(number: int, step: Step) -> Examined:
        before = zip(steps[:number], texts[:number], strict=True)
        after = tuple(text for earlier, text in before if matters(earlier, step))
        question = EXAMINERS[step.kind](command=texts[number], after=after)
        if isinstance(question, ExamineScheduler):
            question = msgspec.structs.replace(question, headers=headers.get(step.name))
        return await cluster.ask(question, Examined, timeout_s=15)

    wrong = list(faults)
    kept: list[Step] = []
    for step, answer in zip(steps, await asyncio.gather(*map(examine, range(len(steps)), steps)), strict=True):
        # What an earlier step adds is not there yet: about those fields the owner cannot know.
        problems = [problem for problem in answer.problems if field_of(problem.path) not in step.awaits]
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
