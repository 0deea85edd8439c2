"""The effective result of the tree for a level or a key."""

from __future__ import annotations

import msgspec

from libs.events.views import KeyView

from .narrowing import EVERYTHING, Effective, narrow
from .state import Key, State

NOTHING = Effective(models=())
"""What is left where a level is missing."""


def of_org(state: State, org: str) -> Effective:
    """What is left for an organisation; NOTHING where there is none of that name."""
    spec = state.orgs.get(org)
    return narrow(EVERYTHING, spec.allowance, f"organisation {org}", f"{org}/*") if spec else NOTHING


def of_team(state: State, team: str) -> Effective:
    """What is left for a team (``org/team``); NOTHING where it or its organisation is missing."""
    spec = state.teams.get(team)
    return narrow(of_org(state, spec.org), spec.allowance, f"team {team}", f"{team}/*") if spec else NOTHING


def of_project(state: State, project: str) -> Effective:
    """What is left for a project (``org/team/project``); NOTHING where it or a level above it is missing."""
    spec = state.projects.get(project)
    if spec is None:
        return NOTHING
    return narrow(of_team(state, f"{spec.org}/{spec.team}"), spec.allowance, f"project {project}", project)


def key_view(key: Key, project: Effective, position: int) -> KeyView:
    """What gateways need to know of a key whose project's effective result is given.

    ``rpm`` and ``tpm`` are the key's own, the project's are the lowest from the organisation down. A revoked
    key stays listed with nothing left of it: a gateway can tell revoked from unknown, and whatever happens to
    its project afterwards does not touch it.
    """
    if key.revoked:
        view = KeyView(key_id=key.key_id, project=key.project, roles=(), models=(), revoked=True)
    else:
        own = narrow(project, key.allowance, f"key {key.key_id}", key.key_id)
        view = KeyView(
            key_id=key.key_id,
            project=key.project,
            roles=key.roles,
            models=own.models,
            rpm=key.allowance.rpm,
            tpm=key.allowance.tpm,
            project_rpm=project.rpm,
            project_tpm=project.tpm,
            policies=own.policies,
            budgets=own.budgets,
            expires_at=key.expires_at,
        )
    return msgspec.structs.replace(view, position=position)


def same(former: KeyView | None, new: KeyView) -> bool:
    """Whether two views say the same, whenever they were derived."""
    return former is not None and msgspec.structs.replace(former, position=0) == msgspec.structs.replace(
        new, position=0
    )
