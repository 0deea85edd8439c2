"""What accounting knows from the log: the tenancy tree, keys and prices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Self

import msgspec

from libs.events import Event, Value
from libs.events.leadership import AccountingElected
from libs.events.tenancy import (
    Allowance,
    KeyChanged,
    KeyCreated,
    KeyForgotten,
    KeyRevoked,
    OrgDefined,
    OrgRemoved,
    OrgSpec,
    PriceDefined,
    ProjectDefined,
    ProjectRemoved,
    ProjectSpec,
    Role,
    TeamDefined,
    TeamRemoved,
    TeamSpec,
)

from . import prices

OWNS = ("org", "team", "project", "key", "price")
"""The aggregates only accounting writes events of."""

SUBJECTS = tuple(f"llmgw.evt.{aggregate}.>" for aggregate in OWNS)
"""The part of the log this state is made of, beside accounting's elections."""


KEPT = timedelta(days=35)
"""How long a key is known after it was revoked or expired: nothing that was asked with it comes later than that."""


class Key(Value, frozen=True, kw_only=True):
    key_id: str
    key_sha256: str
    shown: str
    project: str
    name: str = ""
    roles: tuple[Role, ...] = ("client",)
    allowance: Allowance = Allowance()
    expires_at: datetime | None = None
    revoked: bool = False
    created: int = 0
    """Sequence of the event that created it."""
    leaves: str = ""
    """The UTC day after which it may be forgotten: ``2026-11-29``; empty: none yet."""


class State(msgspec.Struct, kw_only=True):
    """Changed in place by ``evolve``; the values in it never are."""

    orgs: dict[str, OrgSpec] = {}
    teams: dict[str, TeamSpec] = {}
    """``org/team`` to its spec; likewise for projects."""
    projects: dict[str, ProjectSpec] = {}
    keys: dict[str, Key] = {}
    """Key id to the key, as they were created; revoked ones too, until they are forgotten."""
    key_ids: dict[str, str] = {}
    """SHA-256 of a key to its id."""
    members: dict[str, set[str]] = {}
    """Project to the ids of its keys that are not revoked."""
    leaving: dict[str, set[str]] = {}
    """UTC day to the ids of keys that may be forgotten after it."""
    prices: prices.Prices = {}
    elected_at: int = 0
    """Position of the last election: with it another instance may have written the views."""

    def charges(self, account: str) -> bool:
        """Whether an account belongs to a level or key there is: ``k-…``, ``org/team/project``, ``org/team/*``,
        ``org/*``."""
        path = account.removesuffix("/*")
        if path == account:
            return account in self.keys or account in self.projects
        return path in self.orgs or path in self.teams

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A state to suppose events on: containers of its own, and the same values in them."""
        return msgspec.structs.replace(
            self,
            orgs=dict(self.orgs),
            teams=dict(self.teams),
            projects=dict(self.projects),
            keys=dict(self.keys),
            key_ids=dict(self.key_ids),
            members={project: set(ids) for project, ids in self.members.items()},
            leaving={day: set(ids) for day, ids in self.leaving.items()},
            prices={model: list(versions) for model, versions in self.prices.items()},
        )


def evolve(state: State, event: Event, position: int) -> State:
    """Fold one event; ``position`` is its sequence in EVENTS. Never refuses: what is logged has happened."""
    match event:
        case AccountingElected():
            state.elected_at = position
        case OrgDefined():
            state.orgs[event.org] = event.spec
        case OrgRemoved():
            state.orgs.pop(event.org, None)
        case TeamDefined():
            state.teams[event.team] = event.spec
        case TeamRemoved():
            state.teams.pop(event.team, None)
        case ProjectDefined():
            state.projects[event.project] = event.spec
        case ProjectRemoved():
            state.projects.pop(event.project, None)
        case KeyCreated():
            key = Key(
                key_id=event.key_id,
                key_sha256=event.key_sha256,
                shown=event.shown,
                project=event.project,
                name=event.name,
                roles=event.roles,
                allowance=event.allowance,
                expires_at=event.expires_at,
                created=position,
            )
            _keep(state, key, event.expires_at)
            state.key_ids[event.key_sha256] = event.key_id
        case KeyChanged() if event.key_id in state.keys:
            key = msgspec.structs.replace(
                state.keys[event.key_id], name=event.name, allowance=event.allowance, expires_at=event.expires_at
            )
            _keep(state, key, event.expires_at)
        case KeyRevoked() if event.key_id in state.keys:
            _keep(state, msgspec.structs.replace(state.keys[event.key_id], revoked=True), event.at)
        case KeyForgotten():
            for key_id in event.key_ids:
                _forget(state, key_id)
        case PriceDefined():
            prices.add(state.prices, position, event.at, event.price)
        case _:
            pass
    return state


def _keep(state: State, key: Key, ends_at: datetime | None) -> None:
    """Have a key in the state as it is now; from ``ends_at`` on it is of no use."""
    leaves = (ends_at + KEPT).astimezone(UTC).date().isoformat() if ends_at is not None else ""
    former = state.keys.get(key.key_id)
    if former is not None and former.leaves:
        _discard(state.leaving, former.leaves, key.key_id)
    if leaves:
        state.leaving.setdefault(leaves, set()).add(key.key_id)
    if key.revoked:
        _discard(state.members, key.project, key.key_id)
    else:
        state.members.setdefault(key.project, set()).add(key.key_id)
    state.keys[key.key_id] = msgspec.structs.replace(key, leaves=leaves)


def _forget(state: State, key_id: str) -> None:
    key = state.keys.pop(key_id, None)
    if key is not None:
        state.key_ids.pop(key.key_sha256, None)
        _discard(state.members, key.project, key_id)
        _discard(state.leaving, key.leaves, key_id)


def _discard(sets: dict[str, set[str]], name: str, member: str) -> None:
    """Take a member out of a set, and a set that is empty then out of its dict."""
    members = sets.get(name, set())
    members.discard(member)
    if not members:
        sets.pop(name, None)
