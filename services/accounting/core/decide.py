"""Commands to events. Every command is judged whole: a refusal carries every problem it has at once."""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from libs.events import Command, Event
from libs.events.commands import (
    AmendKey,
    AmendLevel,
    Amendment,
    ChangeKey,
    CreateKey,
    DefineOrg,
    DefinePrice,
    DefineProject,
    DefineTeam,
    Problem,
    RemoveOrg,
    RemoveProject,
    RemoveTeam,
    RevokeKey,
)
from libs.events.refusal import Refused, instead_of, some
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
    TeamDefined,
    TeamRemoved,
    TeamSpec,
)

from .effective import of_org, of_project, of_team
from .narrowing import EVERYTHING, NAME, NAME_RULE, problems_of
from .prices import ANY_MODEL
from .state import Key, State

KEY_ID = re.compile(r"^k-[a-z0-9]{4,32}\Z")
SHA256 = re.compile(r"^[0-9a-f]{64}\Z")

SHOWN_CHARACTERS = 20
"""Most of a key that may be shown: ``sk-llmgw-`` and a few more. A whole key would be on the log for ever."""

NAME_CHARACTERS = 200
"""Of a key's free name."""

NOTHING_SAID = Allowance()

L = TypeVar("L", OrgSpec, TeamSpec, ProjectSpec, Key)

MAX_MICROS = 10**9
"""Highest price for 1,000 tokens: a thousand units. With it no sum of a ledger comes near 64 bits."""


def decide(state: State, command: Command, command_id: str, now: datetime) -> Event | None:
    """The event a command causes; None when it changes nothing. Raises Refused."""
    match command:
        case DefineOrg():
            return _define_org(state, command, now)
        case RemoveOrg():
            _refuse(_known("org", "organisation", command.org, state.orgs))
            _refuse(_childless("org", f"organisation {command.org}", "team", _under(command.org, state.teams)))
            return OrgRemoved(at=now, org=command.org)
        case DefineTeam():
            return _define_team(state, command, now)
        case RemoveTeam():
            _refuse(_known("team", "team", command.team, state.teams))
            _refuse(_childless("team", f"team {command.team}", "project", _under(command.team, state.projects)))
            return TeamRemoved(at=now, team=command.team)
        case DefineProject():
            return _define_project(state, command, now)
        case RemoveProject():
            _refuse(_known("project", "project", command.project, state.projects))
            keys = state.members.get(command.project, set())
            _refuse(_childless("project", f"project {command.project}", "key", keys))
            return ProjectRemoved(at=now, project=command.project)
        case CreateKey():
            return _create_key(state, command, now)
        case AmendLevel():
            return _amend_level(state, command, now)
        case AmendKey():
            return _amend_key(state, command, now)
        case ChangeKey():
            return _change_key(state, command, now)
        case RevokeKey():
            _refuse(_known("key_id", "key", command.key_id, state.keys))
            if state.keys[command.key_id].revoked:
                return None
            return KeyRevoked(at=now, key_id=command.key_id, reason=command.reason)
        case DefinePrice():
            return _define_price(state, command, now)
        case _:
            raise Refused.one("", f"{type(command).__name__} is not a command accounting knows")


AT_ONCE = 1000
"""Keys forgotten by one event at most."""


def react(state: State, now: datetime) -> list[tuple[str, Event]]:
    """What is due without a command, as (cause, event): forgetting keys that were kept long enough."""
    day = min(state.leaving, default="")
    if not day or day >= now.astimezone(UTC).date().isoformat():
        return []
    key_ids = tuple(heapq.nsmallest(AT_ONCE, state.leaving[day]))
    return [(f"accounting:forget:{day}:{key_ids[0]}", KeyForgotten(at=now, day=day, key_ids=key_ids))]


def _define_org(state: State, command: DefineOrg, now: datetime) -> Event | None:
    spec = command.spec
    if state.orgs.get(spec.name) == spec:
        return None
    _refuse(_named("spec.name", spec.name), problems_of(EVERYTHING, spec.allowance, "spec.allowance"))
    return OrgDefined(at=now, org=spec.name, spec=spec)


def _define_team(state: State, command: DefineTeam, now: datetime) -> Event | None:
    spec = command.spec
    team = f"{spec.org}/{spec.name}"
    if state.teams.get(team) == spec:
        return None
    parent = _known("spec.org", "organisation", spec.org, state.orgs)
    above = EVERYTHING if parent else of_org(state, spec.org)
    _refuse(_named("spec.name", spec.name), parent, problems_of(above, spec.allowance, "spec.allowance"))
    return TeamDefined(at=now, team=team, spec=spec)


def _define_project(state: State, command: DefineProject, now: datetime) -> Event | None:
    spec = command.spec
    team = f"{spec.org}/{spec.team}"
    project = f"{team}/{spec.name}"
    if state.projects.get(project) == spec:
        return None
    parent = _known("spec.org", "organisation", spec.org, state.orgs) or _known("spec.team", "team", team, state.teams)
    above = EVERYTHING if parent else of_team(state, team)
    _refuse(_named("spec.name", spec.name), parent, problems_of(above, spec.allowance, "spec.allowance"))
    return ProjectDefined(at=now, project=project, spec=spec)


def _create_key(state: State, command: CreateKey, now: datetime) -> Event | None:
    wanted = Key(
        key_id=command.key_id,
        key_sha256=command.key_sha256,
        shown=command.shown,
        project=command.project,
        name=command.name,
        roles=command.roles,
        allowance=command.allowance,
        expires_at=command.expires_at,
    )
    known = state.keys.get(command.key_id)
    if known is not None and msgspec.structs.replace(known, created=0, leaves="") == wanted:
        return None
    problems: list[Problem] = []
    if not KEY_ID.match(command.key_id):
        problems.append(_problem("key_id", f"{command.key_id!r} is not a key id: 'k-' and 4 to 32 of a-z and 0-9"))
    elif command.key_id in state.keys:
        problems.append(_problem("key_id", f"{command.key_id} is another key's id; make a new one"))
    if not SHA256.match(command.key_sha256):
        problems.append(
            _problem("key_sha256", "is not a SHA-256: 64 hex digits in lower case; never send the key itself")
        )
    elif state.key_ids.get(command.key_sha256, command.key_id) != command.key_id:
        taken = state.key_ids[command.key_sha256]
        problems.append(_problem("key_sha256", f"this key is known already as {taken}; make a new one"))
    if not 1 <= len(command.shown) <= SHOWN_CHARACTERS:
        problems.append(
            _problem(
                "shown",
                f"has {len(command.shown)} characters; give the first few of the key, {SHOWN_CHARACTERS} at most",
            )
        )
    if not command.roles:
        problems.append(_problem("roles", "is empty; a key has at least one role"))
    elif len(set(command.roles)) < len(command.roles):
        problems.append(_problem("roles", "names a role twice; leave one out"))
    parent = _known("project", "project", command.project, state.projects)
    _refuse(problems, parent, _key_problems(state, "" if parent else command.project, command, None, now))
    return KeyCreated(
        at=now,
        key_id=command.key_id,
        key_sha256=command.key_sha256,
        shown=command.shown,
        project=command.project,
        name=command.name,
        roles=command.roles,
        allowance=command.allowance,
        expires_at=command.expires_at,
    )


def _amend_level(state: State, command: AmendLevel, now: datetime) -> Event | None:
    level = command.level
    match level.count("/"):
        case 0:
            _refuse(_known("level", "organisation", level, state.orgs))
            return _define_org(state, DefineOrg(spec=_amended(state.orgs[level], command.allowance)), now)
        case 1:
            _refuse(_known("level", "team", level, state.teams))
            return _define_team(state, DefineTeam(spec=_amended(state.teams[level], command.allowance)), now)
        case _:
            _refuse(_known("level", "project", level, state.projects))
            return _define_project(state, DefineProject(spec=_amended(state.projects[level], command.allowance)), now)


def _amend_key(state: State, command: AmendKey, now: datetime) -> Event | None:
    _refuse(_known("key_id", "key", command.key_id, state.keys))
    if command.never_expires and command.expires_at is not None:
        raise Refused.one("expires_at", "a key that never expires has no time at which it does; give one of them")
    key = _amended(state.keys[command.key_id], command.allowance)
    expires_at = None if command.never_expires else command.expires_at or key.expires_at
    name = key.name if command.name is None else command.name
    whole = ChangeKey(key_id=key.key_id, name=name, allowance=key.allowance, expires_at=expires_at)
    return _change_key(state, whole, now)


def _amended(spec: L, amendment: Amendment) -> L:
    """A level or key with a part of its allowance changed."""
    before = msgspec.structs.replace(spec.allowance, **{part: getattr(NOTHING_SAID, part) for part in amendment.clear})
    named = {part: getattr(amendment, part) for part in ("models", "rpm", "tpm", "policies")}
    changed = {part: value for part, value in named.items() if value is not None}
    if amendment.budgets is not None:
        replaced = {budget.period for budget in amendment.budgets}
        others = tuple(budget for budget in before.budgets if budget.period not in replaced)
        changed["budgets"] = others + amendment.budgets
    return msgspec.structs.replace(spec, allowance=msgspec.structs.replace(before, **changed))


def _change_key(state: State, command: ChangeKey, now: datetime) -> Event | None:
    _refuse(_known("key_id", "key", command.key_id, state.keys))
    key = state.keys[command.key_id]
    if key.revoked:
        raise Refused.one("key_id", f"{command.key_id} is revoked, which is for ever; make a new key")
    if (key.name, key.allowance, key.expires_at) == (command.name, command.allowance, command.expires_at):
        return None
    _refuse(_key_problems(state, key.project, command, key, now))
    return KeyChanged(
        at=now,
        key_id=command.key_id,
        name=command.name,
        allowance=command.allowance,
        expires_at=command.expires_at,
    )


def _key_problems(
    state: State, project: str, command: CreateKey | ChangeKey, key: Key | None, now: datetime
) -> list[Problem]:
    """What is wrong with the parts of a key that can be changed; an empty project: nothing is known above it."""
    problems: list[Problem] = []
    if len(command.name) > NAME_CHARACTERS:
        problems.append(_problem("name", f"has {len(command.name)} characters; at most {NAME_CHARACTERS}"))
    if command.expires_at is not None and (key is None or key.expires_at != command.expires_at):
        if command.expires_at.tzinfo is None:
            problems.append(
                _problem("expires_at", f"{command.expires_at.isoformat()} has no time zone; add 'Z' for UTC")
            )
        elif command.expires_at <= now:
            problems.append(
                _problem("expires_at", f"{command.expires_at.isoformat()} is past; give a time to come, or revoke it")
            )
    allowance: Allowance = command.allowance
    above = of_project(state, project) if project else EVERYTHING
    if key is None or key.allowance != allowance:
        problems += problems_of(above, allowance, "allowance")
    return problems


def _define_price(state: State, command: DefinePrice, now: datetime) -> Event | None:
    price = command.price
    versions = state.prices.get(price.model)
    if versions and versions[-1].price == price:
        return None
    problems: list[Problem] = []
    if price.model != ANY_MODEL:
        problems += _named("price.model", price.model)
    for field in ("prompt_micros", "cached_micros", "completion_micros"):
        value = getattr(price, field)
        if not 0 <= value <= MAX_MICROS:
            problems.append(_problem(f"price.{field}", f"{value} is not a price; give 0 to {MAX_MICROS} micro-units"))
    _refuse(problems)
    return PriceDefined(at=now, model=price.model, price=price)


def _refuse(*problems: list[Problem]) -> None:
    every = [problem for part in problems for problem in part]
    if every:
        raise Refused(every)


def _problem(path: str, message: str) -> Problem:
    return Problem(path=path, message=message)


def _named(path: str, name: str) -> list[Problem]:
    return [] if NAME.match(name) else [_problem(path, f"{name!r} is not a name: {NAME_RULE}")]


def _known(path: str, what: str, name: str, names: Collection[str]) -> list[Problem]:
    if name in names:
        return []
    return [_problem(path, f"there is no {what} {name!r}; {instead_of(name, names)}")]


def _under(parent: str, paths: Collection[str]) -> list[str]:
    return [path for path in paths if path.rpartition("/")[0] == parent]


def _childless(path: str, what: str, kind: str, children: Collection[str]) -> list[Problem]:
    if not children:
        return []
    action = "revoke" if kind == "key" else "remove"
    number, those = (f"a {kind}", "it") if len(children) == 1 else (f"{len(children)} {kind}s", "them")
    return [_problem(path, f"{what} still has {number} ({some(children)}); {action} {those} first")]
