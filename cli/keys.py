"""``llmgw key …``. A key is made here, shown once, and only its SHA-256 goes to the cluster."""

from __future__ import annotations

import base64
import os
from datetime import datetime
from typing import Any, get_args

import click
import msgspec

from cli.cluster import Cluster, on_cluster
from cli.confirm import destroys
from cli.names import completed, key_id, projects
from cli.say import say
from cli.tenancy import allowance, allowance_options, amendment, changed_options, path_of
from cli.times import FUTURE
from libs.events.commands import AmendKey, CreateKey, RevokeKey
from libs.events.questions import ListTenancy, TenancyAnswer
from libs.events.tenancy import Allowance, Role
from libs.runtime.secrets import client_key, key_hash

EVERYTHING = Allowance()
SHOWN = 14
"""Characters of a key that are kept for people to tell keys apart: its prefix and five more."""


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just made. Never sent, never logged."""

    key_id: str
    key: str

    @classmethod
    def make(cls) -> NewKey:
        """A new key with a new id."""
        key_id = "k-" + base64.b32encode(os.urandom(10)).decode().lower()[:10]
        return cls(key_id, client_key())

    def command(
        self,
        project: str,
        name: str,
        roles: tuple[Role, ...],
        allowed: Allowance = EVERYTHING,
        expires_at: datetime | None = None,
    ) -> CreateKey:
        """What tells the cluster of it."""
        return CreateKey(
            key_id=self.key_id,
            key_sha256=key_hash(self.key),
            shown=self.key[:SHOWN],
            project=project,
            name=name,
            roles=roles,
            allowance=allowed,
            expires_at=expires_at,
        )


@click.group()
def key() -> None:
    """API keys."""


@key.command("list")
@on_cluster
async def list_keys(cluster: Cluster) -> None:
    """Every key, by the beginning it is known by."""
    answer = await cluster.ask_all(ListTenancy(of=("key",)), TenancyAnswer)
    columns = [("KEY", "key_id"), ("BEGINS", "shown"), ("NAME", "name"), ("PROJECT", "project"), ("ROLES", "roles")]
    columns += [("RPM", "allowance.rpm"), ("TPM", "allowance.tpm"), ("BUDGETS", "allowance.budgets")]
    columns += [("EXPIRES", "expires_at"), ("REVOKED", "revoked")]
    cluster.out.rows(answer.keys, columns, "there is no key yet: `llmgw key create`")


@key.command("create")
@click.argument("project", metavar="ORG/TEAM/PROJECT", shell_complete=completed(projects))
@click.option("--name", default="", help="For people.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(get_args(Role)),
    default=("client",),
    show_default=True,
    help="What it may do: `client` asks models, `admin` sends commands over HTTP; may be repeated.",
)
@click.option("--expires", type=FUTURE, help="When it stops working: 30d from now, or a date.")
@allowance_options
@on_cluster
async def create(
    cluster: Cluster,
    project: str,
    name: str,
    roles: tuple[Role, ...],
    expires: datetime | None,
    **allowed: Any,
) -> None:
    """Create a key for a project and print it, this once."""
    path_of(project, "ORG", "TEAM", "PROJECT")
    new = NewKey.make()
    await cluster.send(new.command(project, name, roles, await allowance(cluster, **allowed), expires))
    cluster.out.result(new, [new.key])
    # On stderr: what is captured is the key alone.
    say(f"This is key {new.key_id}. It is shown this once: keep it now.", err=True)


@key.command("change")
@key_id
@click.option("--name", help="For people.")
@click.option("--expires", type=FUTURE, help="When it stops working: 30d from now, or a date.")
@click.option("--never-expires", is_flag=True, help="Take its expiry away.")
@changed_options
@on_cluster
async def change(
    cluster: Cluster, key_id: str, name: str | None, expires: datetime | None, never_expires: bool, **changed: Any
) -> None:
    """Change what a key is called, when it expires and what it allows; what is not named stays."""
    wish = AmendKey(
        key_id=key_id,
        name=name,
        allowance=await amendment(cluster, **changed),
        expires_at=expires,
        never_expires=never_expires,
    )
    outcome = await cluster.send(wish)
    cluster.out.result(outcome, [outcome.message or f"key {key_id}: {outcome.status}"])


@key.command("revoke")
@key_id
@click.option("--reason", default="", help="Kept in the log.")
@destroys("revoke key {key_id} for good")
@on_cluster
async def revoke(cluster: Cluster, key_id: str, reason: str) -> None:
    """Stop a key from working, for good."""
    outcome = await cluster.send(RevokeKey(key_id=key_id, reason=reason))
    cluster.out.result(outcome, [outcome.message or f"key {key_id} is revoked"])
