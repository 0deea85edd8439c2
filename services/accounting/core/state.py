"""What accounting knows from the log: the tenancy tree, keys and prices."""

from __future__ import annotations

from datetime import datetime

import msgspec

from libs.events import Event
from libs.events.leadership import AccountingElected
from libs.events.tenancy import (
    Allowance,
    KeyChanged,
    KeyCreated,
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


class Key(msgspec.Struct, frozen=True, kw_only=True):
    key_id: str
    key_sha256: str
    shown: str
    project: str
    name: str = ""
    roles: tuple[Role, ...] = ("client",)
    allowance: Allowance = Allowance()
    expires_at: datetime | None = None
    revoked: bool = False


class State(msgspec.Struct, kw_only=True):
    """Changed in place by ``evolve``; the values in it never are."""

    orgs: dict[str, OrgSpec] = {}
    teams: dict[str, TeamSpec] = {}
    """``org/team`` to its spec; likewise for projects."""
    projects: dict[str, ProjectSpec] = {}
    keys: dict[str, Key] = {}
    """Key id to the key, revoked ones too."""
    key_ids: dict[str, str] = {}
    """SHA-256 of a key to its id."""
    prices: prices.Prices = {}
    elected_at: int = 0
    """Position of the last election: with it another instance may have written the views."""


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
            state.keys[event.key_id] = Key(
                key_id=event.key_id,
                key_sha256=event.key_sha256,
                shown=event.shown,
                project=event.project,
                name=event.name,
                roles=event.roles,
                allowance=event.allowance,
                expires_at=event.expires_at,
            )
            state.key_ids[event.key_sha256] = event.key_id
        case KeyChanged() if event.key_id in state.keys:
            state.keys[event.key_id] = msgspec.structs.replace(
                state.keys[event.key_id], name=event.name, allowance=event.allowance, expires_at=event.expires_at
            )
        case KeyRevoked() if event.key_id in state.keys:
            state.keys[event.key_id] = msgspec.structs.replace(state.keys[event.key_id], revoked=True)
        case PriceDefined():
            prices.add(state.prices, position, event.at, event.price)
        case _:
            pass
    return state
