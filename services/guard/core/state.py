"""What the log says about policies, and what a command does to it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from libs.events.commands import DefinePolicy, RemovePolicy
from libs.events.contract import Command, Event
from libs.events.leadership import GuardElected
from libs.events.policy import PolicyDefined, PolicyRemoved, PolicySpec
from libs.events.refusal import Refused
from libs.events.tenancy import (
    KeyChanged,
    KeyCreated,
    KeyRevoked,
    OrgDefined,
    OrgRemoved,
    ProjectDefined,
    ProjectRemoved,
    TeamDefined,
    TeamRemoved,
)

from .policies import compile_policy

MAX_NAMED = 5
"""Places of the tenancy tree a refusal names one by one."""


class State(msgspec.Struct, kw_only=True):
    policies: dict[str, PolicySpec] = {}
    attached: dict[str, tuple[str, ...]] = {}
    """``org acme``, ``key k-…`` to the policies it names: a policy somebody relies on is not removed."""
    election: int = 0
    """Sequence of the newest election: who leads since then cannot know what views hold."""


def evolve(state: State, event: Event, position: int) -> State:
    """Fold one event of the log into the state."""
    match event:
        case PolicyDefined():
            return msgspec.structs.replace(state, policies=state.policies | {event.policy: event.spec})
        case PolicyRemoved():
            return msgspec.structs.replace(
                state, policies={name: spec for name, spec in state.policies.items() if name != event.policy}
            )
        case GuardElected():
            return msgspec.structs.replace(state, election=position)
        case OrgDefined():
            _attach(state, f"org {event.org}", event.spec.allowance.policies)
        case OrgRemoved():
            _attach(state, f"org {event.org}", ())
        case TeamDefined():
            _attach(state, f"team {event.team}", event.spec.allowance.policies)
        case TeamRemoved():
            _attach(state, f"team {event.team}", ())
        case ProjectDefined():
            _attach(state, f"project {event.project}", event.spec.allowance.policies)
        case ProjectRemoved():
            _attach(state, f"project {event.project}", ())
        case KeyCreated() | KeyChanged():
            _attach(state, f"key {event.key_id}", event.allowance.policies)
        case KeyRevoked():
            _attach(state, f"key {event.key_id}", ())
    return state


def _attach(state: State, place: str, policies: tuple[str, ...]) -> None:
    if policies:
        state.attached[place] = policies
    else:
        state.attached.pop(place, None)


def decide(state: State, command: Command, command_id: str, now: datetime) -> Event | None:
    """The event a command causes; None: it changes nothing. Raises Refused."""
    match command:
        case DefinePolicy(spec=spec):
            compile_policy(spec)
            if state.policies.get(spec.name) == spec:
                return None
            return PolicyDefined(at=now, policy=spec.name, spec=spec)
        case RemovePolicy(policy=name):
            if name not in state.policies:
                known = ", ".join(sorted(state.policies)) or "none"
                raise Refused.one("policy", f"there is no policy named {name!r}; there is: {known}")
            places = sorted(place for place, policies in state.attached.items() if name in policies)
            if places:
                more = f" and {len(places) - MAX_NAMED} more" if len(places) > MAX_NAMED else ""
                raise Refused.one(
                    "policy", f"{name!r} applies to {', '.join(places[:MAX_NAMED])}{more}: take it off there first"
                )
            return PolicyRemoved(at=now, policy=name)
        case _:
            raise Refused.one("", f"the guard takes no command {type(command).__name__}")
