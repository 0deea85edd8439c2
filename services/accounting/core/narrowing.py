"""Allowances down the tree: each level only narrows what stands above it."""

from __future__ import annotations

import re

import msgspec

from libs.events.budget import MICROS, Budget, LevelBudget
from libs.events.commands import Problem
from libs.events.tenancy import Allowance

NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}\Z")
NAME_RULE = "1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit"

MAX_PER_MINUTE = 10**12
"""A figure above this is a slip of the hand, and would not fit where it is kept."""


MAX_MICROS = 10**18
"""Largest budget: a million million units. Sums of it stay within 64 bits."""


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of all levels from the organisation down to some level."""

    models: tuple[str, ...] | None = None
    """None: every model."""
    rpm: int | None = None
    tpm: int | None = None
    policies: tuple[str, ...] = ()
    budgets: tuple[LevelBudget, ...] = ()
    """Of every level: each is enforced by itself."""
    models_set_by: str = ""
    """The lowest level that set it, for people: ``team acme/research``; likewise for the other two."""
    rpm_set_by: str = ""
    tpm_set_by: str = ""


EVERYTHING = Effective()
"""What stands above an organisation."""


def narrow(above: Effective, allowance: Allowance, level: str, account: str) -> Effective:
    """What is left of ``above`` under an allowance: models intersected, the lower rates, policies and budgets of
    both. ``level`` is what people call it, ``account`` what its budgets are charged to."""
    models, models_by = above.models, above.models_set_by
    if allowance.models is not None:
        models_by = level
        both = allowance.models if models is None else [model for model in allowance.models if model in models]
        models = tuple(both)
    rpm, rpm_by = above.rpm, above.rpm_set_by
    if allowance.rpm is not None and (rpm is None or allowance.rpm <= rpm):
        rpm, rpm_by = allowance.rpm, level
    tpm, tpm_by = above.tpm, above.tpm_set_by
    if allowance.tpm is not None and (tpm is None or allowance.tpm <= tpm):
        tpm, tpm_by = allowance.tpm, level
    return Effective(
        models=models,
        rpm=rpm,
        tpm=tpm,
        policies=tuple(dict.fromkeys(above.policies + allowance.policies)),
        budgets=above.budgets + of_level(account, allowance),
        models_set_by=models_by,
        rpm_set_by=rpm_by,
        tpm_set_by=tpm_by,
    )


def of_level(account: str, allowance: Allowance) -> tuple[LevelBudget, ...]:
    """The budgets of one level, with what they are charged to."""
    return tuple(
        LevelBudget(account=account, amount_micros=budget.amount_micros, period=budget.period)
        for budget in allowance.budgets
    )


def problems_of(above: Effective, allowance: Allowance, path: str) -> list[Problem]:
    """What is wrong with an allowance under what stands above it. Empty: nothing.

    Only the new allowance is judged. A level above may be narrowed at any time, also below what levels under
    it say: an organisation can be cut at once, and what is left of them is worked out by ``narrow``.
    """
    problems: list[Problem] = []
    problems += _rate(f"{path}.rpm", allowance.rpm, above.rpm, above.rpm_set_by, "requests")
    problems += _rate(f"{path}.tpm", allowance.tpm, above.tpm, above.tpm_set_by, "tokens")
    problems += _budgets(f"{path}.budgets", allowance.budgets)
    problems += _names(f"{path}.policies", allowance.policies, "a policy's name")
    problems += _names(f"{path}.models", allowance.models or (), "a model's name")
    if above.models is not None:
        for i, model in enumerate(allowance.models or ()):
            if model not in above.models:
                allowed = ", ".join(above.models) or "none"
                problems.append(
                    Problem(
                        path=f"{path}.models[{i}]",
                        message=f"{model!r} is not among the models that {above.models_set_by} allows ({allowed}); "
                        "allow it there first or leave it out",
                    )
                )
    return problems


def _rate(path: str, value: int | None, most: int | None, set_by: str, what: str) -> list[Problem]:
    if value is None:
        return []
    if not 1 <= value <= MAX_PER_MINUTE:
        message = f"{value} {what} a minute is not possible; give 1 to {MAX_PER_MINUTE}, or leave it out for no limit"
        return [Problem(path=path, message=message)]
    if most is not None and value > most:
        message = f"{value} {what} a minute is more than the {most} that {set_by} allows; give at most {most}"
        return [Problem(path=path, message=message)]
    return []


def _budgets(path: str, budgets: tuple[Budget, ...]) -> list[Problem]:
    problems: list[Problem] = []
    for i, budget in enumerate(budgets):
        if not 1 <= budget.amount_micros <= MAX_MICROS:
            message = (
                f"{budget.amount_micros} micro-units are not a budget; give 1 to {MAX_MICROS} "
                f"({MICROS} are one unit of currency), or leave it out for no budget"
            )
            problems.append(Problem(path=f"{path}[{i}].amount_micros", message=message))
        if any(budget.period == other.period for other in budgets[:i]):
            message = f"there is a budget for {budget.period!r} already; leave one out"
            problems.append(Problem(path=f"{path}[{i}].period", message=message))
    return problems


def _names(path: str, names: tuple[str, ...], what: str) -> list[Problem]:
    problems: list[Problem] = []
    for i, name in enumerate(names):
        if not NAME.match(name):
            problems.append(Problem(path=f"{path}[{i}]", message=f"{name!r} is not {what}: {NAME_RULE}"))
        elif name in names[:i]:
            problems.append(Problem(path=f"{path}[{i}]", message=f"{name!r} stands here twice; leave one out"))
    return problems
