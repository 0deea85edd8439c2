"""``llmgw org|team|project …``: who may use the cluster."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, get_args

import click

from cli.cluster import Cluster, on_cluster
from cli.confirm import destroys
from cli.failure import Failed
from cli.names import completed, models, org_name, policies, project_path, team_path
from cli.numbers import Whole
from cli.steps import no_policy
from libs.events.budget import MICROS, PERIODS, Budget
from libs.events.commands import (
    AllowancePart,
    AmendLevel,
    Amendment,
    DefineOrg,
    DefineProject,
    DefineTeam,
    RemoveOrg,
    RemoveProject,
    RemoveTeam,
)
from libs.events.questions import ListPolicies, ListTenancy, PoliciesAnswer, TenancyAnswer
from libs.events.tenancy import Allowance, OrgSpec, ProjectSpec, TeamSpec

ALLOWANCE_COLUMNS = [
    ("MODELS", "allowance.models"),
    ("RPM", "allowance.rpm"),
    ("TPM", "allowance.tpm"),
    ("BUDGETS", "allowance.budgets"),
    ("POLICIES", "allowance.policies"),
]


class BudgetAmount(click.ParamType[Budget]):
    """``AMOUNT/PERIOD``, in units of the cluster's currency."""

    name = "amount/period"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Budget:
        """Raises BadParameter."""
        if isinstance(value, Budget):
            return value
        amount, _, period = str(value).partition("/")
        try:
            micros = Decimal(amount) * MICROS
        except InvalidOperation:
            self.fail(f"{amount!r} is not a number: write an amount and a period, like 25/month", param, ctx)
        if not period:
            known = ", ".join(f"{amount}/{known}" for known in PERIODS)
            self.fail(f"{value!r} has no period: write one of {known}", param, ctx)
        if period not in PERIODS:
            self.fail(f"unknown period {period!r}: write one of {', '.join(PERIODS)}", param, ctx)
        if not micros.is_finite() or micros != int(micros) or micros < 1:
            self.fail(f"{amount} is not an amount from 0.000001 up, with six decimals at most", param, ctx)
        return Budget(amount_micros=int(micros), period=period)


AMOUNT = BudgetAmount()


def allowance_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--model``, ``--rpm``, ``--tpm``, ``--budget``, ``--policy``: what a level may do; it only narrows what stands
    above it."""
    for option in (
        click.option(
            "--budget",
            "budgets",
            multiple=True,
            type=AMOUNT,
            help="What may be spent: 25/month, 0.5/day, 10/week, 100/total; may be repeated for another period.",
        ),
        click.option(
            "--policy",
            "policies",
            multiple=True,
            shell_complete=completed(policies),
            help="Guard policy that applies; may be repeated.",
        ),
        click.option("--tpm", type=Whole(1), help="Tokens a minute."),
        click.option("--rpm", type=Whole(1), help="Requests a minute."),
        click.option(
            "--model",
            "models",
            multiple=True,
            shell_complete=completed(models),
            help="Only this model; may be repeated.  [default: all]",
        ),
    ):
        function = option(function)
    return function


async def allowance(
    cluster: Cluster,
    *,
    models: tuple[str, ...],
    rpm: int | None,
    tpm: int | None,
    policies: tuple[str, ...],
    budgets: tuple[Budget, ...],
) -> Allowance:
    """What a level allows. Raises Failed for a policy that is not there: under such a name no rule would hold."""
    if policies:
        known = {policy.name for policy in (await cluster.ask(ListPolicies(), PoliciesAnswer)).policies}
        for name in policies:
            if name not in known:
                raise Failed(no_policy(name, known))
    return Allowance(models=models or None, rpm=rpm, tpm=tpm, policies=policies, budgets=budgets)


def changed_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of ``allowance_options``, and ``--clear``: what of an allowance shall be otherwise."""
    option = click.option(
        "--clear",
        multiple=True,
        type=click.Choice(get_args(AllowancePart)),
        help="Take this away; may be repeated.  [what is not named stays]",
    )
    return option(allowance_options(function))


async def amendment(cluster: Cluster, clear: tuple[AllowancePart, ...], **allowed: Any) -> Amendment:
    """What of an allowance shall be otherwise. Raises Failed for a policy that is not there."""
    new = await allowance(cluster, **allowed)
    return Amendment(
        models=new.models,
        rpm=new.rpm,
        tpm=new.tpm,
        policies=new.policies or None,
        budgets=new.budgets or None,
        clear=clear,
    )


async def change_level(
    cluster: Cluster, kind: str, path: str, clear: tuple[AllowancePart, ...], **allowed: Any
) -> None:
    """Change a part of what a level allows, and say so. Raises Failed."""
    outcome = await cluster.send(AmendLevel(level=path, allowance=await amendment(cluster, clear, **allowed)))
    cluster.out.result(outcome, [outcome.message or f"{kind} {path}: {outcome.status}"])


async def refuse_another(cluster: Cluster, kind: str, path: str, spec: OrgSpec | TeamSpec | ProjectSpec) -> None:
    """Raises Failed where a level of that name allows something else: creating it would take that away."""
    answer = await cluster.ask_all(ListTenancy(of=("org", "team", "project")), TenancyAnswer)
    for level in (*answer.orgs, *answer.teams, *answer.projects):
        if type(level) is type(spec) and level_path(level) == path and level != spec:
            raise Failed(
                f"{kind} {path} is there already and allows something else: `llmgw {KINDS[kind]} change {path}`"
            )


KINDS = {"organisation": "org", "team": "team", "project": "project"}


def level_path(spec: OrgSpec | TeamSpec | ProjectSpec) -> str:
    """``org``, ``org/team`` or ``org/team/project``."""
    match spec:
        case OrgSpec():
            return spec.name
        case TeamSpec():
            return f"{spec.org}/{spec.name}"
        case ProjectSpec():
            return f"{spec.org}/{spec.team}/{spec.name}"


def path_of(text: str, *levels: str) -> list[str]:
    """The parts of ``ORG/TEAM…``. Raises UsageError."""
    parts = text.split("/")
    if len(parts) != len(levels) or not all(parts):
        raise click.UsageError(f"{text!r} is not {'/'.join(levels)}")
    return parts


@click.group()
def org() -> None:
    """Organisations."""


@org.command("list")
@on_cluster
async def list_orgs(cluster: Cluster) -> None:
    """Every organisation."""
    answer = await cluster.ask_all(ListTenancy(of=("org",)), TenancyAnswer)
    cluster.out.rows(answer.orgs, [("ORGANISATION", "name"), *ALLOWANCE_COLUMNS], "there is no organisation yet")


@org.command("create")
@click.argument("name", metavar="ORG")
@allowance_options
@on_cluster
async def create_org(cluster: Cluster, name: str, **allowed: Any) -> None:
    """Create an organisation."""
    spec = OrgSpec(name=name, allowance=await allowance(cluster, **allowed))
    await refuse_another(cluster, "organisation", name, spec)
    outcome = await cluster.send(DefineOrg(spec=spec))
    cluster.out.result(outcome, [outcome.message or f"organisation {name}: {outcome.status}"])


@org.command("change")
@org_name
@changed_options
@on_cluster
async def change_org(cluster: Cluster, name: str, **changed: Any) -> None:
    """Change what an organisation allows; what is not named stays."""
    path_of(name, "ORG")
    await change_level(cluster, "organisation", name, **changed)


@org.command("remove")
@org_name
@destroys("remove organisation {name}")
@on_cluster
async def remove_org(cluster: Cluster, name: str) -> None:
    """Remove an organisation that has no teams."""
    outcome = await cluster.send(RemoveOrg(org=name))
    cluster.out.result(outcome, [outcome.message or f"organisation {name} is removed"])


@click.group()
def team() -> None:
    """Teams of an organisation."""


@team.command("list")
@on_cluster
async def list_teams(cluster: Cluster) -> None:
    """Every team."""
    answer = await cluster.ask_all(ListTenancy(of=("team",)), TenancyAnswer)
    columns = [("ORGANISATION", "org"), ("TEAM", "name"), *ALLOWANCE_COLUMNS]
    cluster.out.rows(answer.teams, columns, "there is no team yet")


@team.command("create")
@click.argument("path", metavar="ORG/TEAM")
@allowance_options
@on_cluster
async def create_team(cluster: Cluster, path: str, **allowed: Any) -> None:
    """Create a team."""
    org_name, name = path_of(path, "ORG", "TEAM")
    spec = TeamSpec(org=org_name, name=name, allowance=await allowance(cluster, **allowed))
    await refuse_another(cluster, "team", path, spec)
    outcome = await cluster.send(DefineTeam(spec=spec))
    cluster.out.result(outcome, [outcome.message or f"team {path}: {outcome.status}"])


@team.command("change")
@team_path
@changed_options
@on_cluster
async def change_team(cluster: Cluster, path: str, **changed: Any) -> None:
    """Change what a team allows; what is not named stays."""
    path_of(path, "ORG", "TEAM")
    await change_level(cluster, "team", path, **changed)


@team.command("remove")
@team_path
@destroys("remove team {path}")
@on_cluster
async def remove_team(cluster: Cluster, path: str) -> None:
    """Remove a team that has no projects."""
    path_of(path, "ORG", "TEAM")
    outcome = await cluster.send(RemoveTeam(team=path))
    cluster.out.result(outcome, [outcome.message or f"team {path} is removed"])


@click.group()
def project() -> None:
    """Projects of a team: keys belong to them."""


@project.command("list")
@on_cluster
async def list_projects(cluster: Cluster) -> None:
    """Every project."""
    answer = await cluster.ask_all(ListTenancy(of=("project",)), TenancyAnswer)
    columns = [("ORGANISATION", "org"), ("TEAM", "team"), ("PROJECT", "name"), *ALLOWANCE_COLUMNS]
    cluster.out.rows(answer.projects, columns, "there is no project yet")


@project.command("create")
@click.argument("path", metavar="ORG/TEAM/PROJECT")
@allowance_options
@on_cluster
async def create_project(cluster: Cluster, path: str, **allowed: Any) -> None:
    """Create a project."""
    org_name, team_name, name = path_of(path, "ORG", "TEAM", "PROJECT")
    spec = ProjectSpec(org=org_name, team=team_name, name=name, allowance=await allowance(cluster, **allowed))
    await refuse_another(cluster, "project", path, spec)
    outcome = await cluster.send(DefineProject(spec=spec))
    cluster.out.result(outcome, [outcome.message or f"project {path}: {outcome.status}"])


@project.command("change")
@project_path
@changed_options
@on_cluster
async def change_project(cluster: Cluster, path: str, **changed: Any) -> None:
    """Change what a project allows; what is not named stays."""
    path_of(path, "ORG", "TEAM", "PROJECT")
    await change_level(cluster, "project", path, **changed)


@project.command("remove")
@project_path
@destroys("remove project {path}")
@on_cluster
async def remove_project(cluster: Cluster, path: str) -> None:
    """Remove a project."""
    path_of(path, "ORG", "TEAM", "PROJECT")
    outcome = await cluster.send(RemoveProject(project=path))
    cluster.out.result(outcome, [outcome.message or f"project {path} is removed"])
