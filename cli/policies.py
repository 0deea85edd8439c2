"""``llmgw policy …``. Policies are defined by ``llmgw apply``."""

from __future__ import annotations

import click

from cli.cluster import Cluster, on_cluster
from cli.confirm import destroys
from cli.failure import Failed
from cli.names import policy_name
from cli.owners import everything
from cli.steps import Step, still_used
from libs.events.commands import RemovePolicy
from libs.events.questions import ListPolicies, PoliciesAnswer


@click.group()
def policy() -> None:
    """Guard policies: rules on what may go in."""


@policy.command("list")
@on_cluster
async def list_policies(cluster: Cluster) -> None:
    """Every policy."""
    answer = await cluster.ask(ListPolicies(), PoliciesAnswer)
    if_empty = "no policy is defined: declare one in a file for `llmgw apply`"
    rows = [
        {
            "name": policy.name,
            "mode": policy.mode,
            "default": policy.default,
            "fail": policy.fail,
            "rules": (
                *([f"secrets:{policy.input.secrets.action}"] if policy.input.secrets else []),
                *(f"{kind}:{action}" for kind, action in policy.input.pii.items()),
                *(f"deny {rule.name}:{rule.action}" for rule in policy.input.deny),
            ),
        }
        for policy in answer.policies
    ]
    columns = [
        ("POLICY", "name"),
        ("MODE", "mode"),
        ("EVERY REQUEST", "default"),
        ("FAILS", "fail"),
        ("RULES", "rules"),
    ]
    cluster.out.rows(rows, columns, if_empty)


@policy.command("remove")
@policy_name
@destroys("remove policy {name}")
@on_cluster
async def remove(cluster: Cluster, name: str) -> None:
    """Remove a policy that no allowance names."""
    removal = Step(action="remove", kind="policy", name=name, command=RemovePolicy(policy=name))
    faults = still_used([removal], [], await everything(cluster))
    if faults:
        raise Failed("\n  ".join(faults))
    outcome = await cluster.send(removal.command)
    cluster.out.result(outcome, [outcome.message or f"policy {name} is removed"])
