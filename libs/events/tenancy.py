"""Who may use what: organisations, teams, projects and keys; and what it costs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from .budget import Budget
from .contract import Event, Value, registered

Role = Literal["client", "viewer", "operator", "billing", "admin"]


class Allowance(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a level of the tree may do. Each level only narrows what stands above it."""

    models: tuple[str, ...] | None = None
    """None: every model the level above allows."""
    rpm: int | None = None
    """Requests a minute."""
    tpm: int | None = None
    """Tokens a minute."""
    policies: tuple[str, ...] = ()
    """Guard policies that apply from here down."""
    budgets: tuple[Budget, ...] = ()
    """At most one for each kind of period. They do not have to fit under those above: each is enforced by itself."""


class OrgSpec(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    allowance: Allowance = Allowance()


class TeamSpec(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    org: str
    name: str
    allowance: Allowance = Allowance()


class ProjectSpec(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    org: str
    team: str
    name: str
    allowance: Allowance = Allowance()


@registered
class OrgDefined(Event, frozen=True, kw_only=True, tag="org.defined.v1"):
    ids = ("org",)
    org: str
    spec: OrgSpec


@registered
class OrgRemoved(Event, frozen=True, kw_only=True, tag="org.removed.v1"):
    ids = ("org",)
    org: str


@registered
class TeamDefined(Event, frozen=True, kw_only=True, tag="team.defined.v1"):
    ids = ("team",)
    team: str
    """``org/team``."""
    spec: TeamSpec


@registered
class TeamRemoved(Event, frozen=True, kw_only=True, tag="team.removed.v1"):
    ids = ("team",)
    team: str


@registered
class ProjectDefined(Event, frozen=True, kw_only=True, tag="project.defined.v1"):
    ids = ("project",)
    project: str
    """``org/team/project``."""
    spec: ProjectSpec


@registered
class ProjectRemoved(Event, frozen=True, kw_only=True, tag="project.removed.v1"):
    ids = ("project",)
    project: str


@registered
class KeyCreated(Event, frozen=True, kw_only=True, tag="key.created.v1"):
    """A key may be used from now on. The key itself was made where it was asked for and is nowhere kept."""

    ids = ("key_id",)
    key_id: str
    key_sha256: str
    shown: str
    """The beginning of the key, for people to tell keys apart."""
    project: str
    """``org/team/project``."""
    name: str = ""
    roles: tuple[Role, ...] = ("client",)
    allowance: Allowance = Allowance()
    expires_at: datetime | None = None


@registered
class KeyChanged(Event, frozen=True, kw_only=True, tag="key.changed.v1"):
    ids = ("key_id",)
    key_id: str
    name: str = ""
    allowance: Allowance = Allowance()
    expires_at: datetime | None = None


@registered
class KeyRevoked(Event, frozen=True, kw_only=True, tag="key.revoked.v1"):
    ids = ("key_id",)
    key_id: str
    reason: str = ""


@registered
class KeyForgotten(Event, frozen=True, kw_only=True, tag="key.forgotten.v1"):
    """Keys that were of no use for so long that nothing asked with them can still come: what is kept of them is in
    the ledger and in this log."""

    ids = ("day",)
    day: str
    """The UTC day they were kept until: ``2026-11-29``."""
    key_ids: tuple[str, ...]


PER = 1000
"""Prices are micro-units for so many tokens."""


class Price(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Micro-units of the cluster's currency per 1,000 tokens."""

    model: str
    """A model's name, or ``*`` for every model without a price of its own."""
    prompt_micros: int = 0
    cached_micros: int = 0
    """0: cached prompt tokens cost what other prompt tokens cost."""
    completion_micros: int = 0

    def cost_micros(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
        """What tokens cost, in micro-units, rounded up: rounded down, a stream of tiny requests would be free.

        ⌈((prompt - cached)·p + cached·c) / 1000⌉ + ⌈completion·o / 1000⌉, where cached tokens are a part of the
        prompt's and never more than it, and a cached rate of 0 means the prompt's rate.
        """
        prompt = max(prompt_tokens, 0)
        cached = min(max(cached_tokens, 0), prompt)
        prompt_micros = (prompt - cached) * self.prompt_micros + cached * (self.cached_micros or self.prompt_micros)
        return -(-prompt_micros // PER) + -(-max(completion_tokens, 0) * self.completion_micros // PER)


@registered
class PriceDefined(Event, frozen=True, kw_only=True, tag="price.defined.v1"):
    """Applies to requests that finish from ``at`` on; its sequence in the log is the price's version."""

    ids = ("model",)
    model: str
    price: Price
