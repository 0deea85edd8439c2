"""Arguments that name something in the cluster, completed by shells where the cluster answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import click

from cli.cluster import Cluster, locate, quiet, reached
from cli.failure import Failed
from cli.output import Quiet
from libs.events.questions import (
    LibraryAnswer,
    ListLibrary,
    ListModels,
    ListNodes,
    ListPolicies,
    ListTenancy,
    ModelsAnswer,
    NodesAnswer,
    PoliciesAnswer,
    TenancyAnswer,
)

COMPLETE_S = 2.0
"""Nobody waits longer for the names a shell offers."""

Lookup = Callable[[Cluster], Awaitable[Iterable[str]]]


async def models(cluster: Cluster) -> Iterable[str]:
    """Names of all models. Raises Failed."""
    return [model.model for model in (await cluster.ask(ListModels(), ModelsAnswer)).models]


async def replicas(cluster: Cluster) -> Iterable[str]:
    """Ids of all replicas. Raises Failed."""
    answer = await cluster.ask(ListModels(), ModelsAnswer)
    return [replica.replica_id for model in answer.models for replica in model.replicas]


async def nodes(cluster: Cluster) -> Iterable[str]:
    """Ids of all nodes. Raises Failed."""
    return [node.machine_id for node in (await cluster.ask(ListNodes(), NodesAnswer)).nodes]


async def shards(cluster: Cluster) -> Iterable[str]:
    """Ids of the shards that run. Raises Failed."""
    return [shard for node in (await cluster.ask(ListNodes(), NodesAnswer)).nodes for shard in node.shards]


async def keys(cluster: Cluster) -> Iterable[str]:
    """Ids of the keys that are not revoked. Raises Failed."""
    answer = await cluster.ask_all(ListTenancy(of=("key",)), TenancyAnswer)
    return [key.key_id for key in answer.keys if not key.revoked]


async def orgs(cluster: Cluster) -> Iterable[str]:
    """Names of all organisations. Raises Failed."""
    return [org.name for org in (await cluster.ask_all(ListTenancy(of=("org",)), TenancyAnswer)).orgs]


async def teams(cluster: Cluster) -> Iterable[str]:
    """``ORG/TEAM`` of all teams. Raises Failed."""
    answer = await cluster.ask_all(ListTenancy(of=("team",)), TenancyAnswer)
    return [f"{team.org}/{team.name}" for team in answer.teams]


async def projects(cluster: Cluster) -> Iterable[str]:
    """``ORG/TEAM/PROJECT`` of all projects. Raises Failed."""
    answer = await cluster.ask_all(ListTenancy(of=("project",)), TenancyAnswer)
    return [f"{project.org}/{project.team}/{project.name}" for project in answer.projects]


async def policies(cluster: Cluster) -> Iterable[str]:
    """Names of all policies. Raises Failed."""
    return [policy.name for policy in (await cluster.ask(ListPolicies(), PoliciesAnswer)).policies]


async def versions(cluster: Cluster) -> Iterable[str]:
    """``NAME@VERSION`` of all weights in the library. Raises Failed."""
    answer = await cluster.ask(ListLibrary(), LibraryAnswer)
    return [f"{entry.name}@{version}" for entry in answer.entries for version in entry.versions]


def completed(lookup: Lookup) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """For ``shell_complete``: names that begin as what was typed; none where the cluster does not answer at once."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        given = context.params

        async def ask() -> list[str]:
            home, url, seed = locate(given.get("state_dir"), given.get("nats"), given.get("credentials"))
            async with asyncio.timeout(COMPLETE_S), reached(url, seed, seed.stem if seed else "operator") as bus:
                return [*await lookup(Cluster(bus=bus, out=Quiet(), home=home))]

        quiet()
        try:
            return sorted(name for name in asyncio.run(ask()) if name.startswith(incomplete))
        except (Failed, TimeoutError, click.UsageError):
            return []

    return complete


def name_of(metavar: str, lookup: Lookup, name: str = "name") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: an argument, shown as ``metavar``, with which one of these is named."""
    return click.argument(name, metavar=metavar, shell_complete=completed(lookup))


model_name = name_of("MODEL", models)
replica_name = name_of("REPLICA", replicas)
shard_name = name_of("SHARD", shards)
node_name = name_of("NODE", nodes)
org_name = name_of("ORG", orgs)
team_path = name_of("ORG/TEAM", teams, "path")
project_path = name_of("ORG/TEAM/PROJECT", projects, "path")
key_id = name_of("KEY", keys, "key_id")
policy_name = name_of("POLICY", policies)
version_name = name_of("NAME@VERSION", versions, "weights")
