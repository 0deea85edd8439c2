"""Rules on what may go in, and what the guard found."""

from __future__ import annotations

from typing import Literal

from .contract import Contract, Event, Value, registered

Action = Literal["block", "redact", "flag"]
PiiKind = Literal["email", "card"]


class SecretsRule(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Action = "block"


class DenyRule(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    pattern: str
    """RE2 syntax."""
    action: Action = "block"


class InputRules(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    secrets: SecretsRule | None = None
    pii: dict[PiiKind, Action] = {}
    deny: tuple[DenyRule, ...] = ()


class PolicySpec(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    mode: Literal["observe", "enforce"] = "observe"
    fail: Literal["open", "closed"] = "closed"
    """What happens to a request under ``enforce`` when no verdict comes in time."""
    default: bool = False
    """Applies to every request; otherwise only where a level of the tenancy tree names it."""
    input: InputRules = InputRules()


@registered
class PolicyDefined(Event, frozen=True, kw_only=True, tag="policy.defined.v1"):
    ids = ("policy",)
    policy: str
    spec: PolicySpec


@registered
class PolicyRemoved(Event, frozen=True, kw_only=True, tag="policy.removed.v1"):
    ids = ("policy",)
    policy: str


class Segment(Value, frozen=True, kw_only=True):
    """One piece of text of a request."""

    path: str
    """Where it stands in the body, as a JSON pointer: ``/messages/0/content``."""
    text: str


@registered
class Check(Contract, frozen=True, kw_only=True, tag="chk.gateway.check.v1"):
    """Text to judge. Lives in memory only."""

    plane = "chk"
    ids = ("gateway_id", "check_id")
    gateway_id: str
    check_id: str
    request_id: str
    project: str
    policies: tuple[str, ...]
    segments: tuple[Segment, ...]
    reply: str | None = None
    """Subject the verdict goes to; None when nothing waits for it (observe)."""


class Span(Value, frozen=True, kw_only=True):
    """Characters ``start`` to ``end`` (exclusive, counted in Unicode code points) of one segment."""

    path: str
    start: int
    end: int
    replacement: str


class Finding(Value, frozen=True, kw_only=True):
    policy: str
    rule: str
    """``secrets.aws_access_key``, ``pii.email``, ``deny.NAME``."""
    action: Action
    enforced: bool
    count: int = 1
    characters: int = 0
    """How long the matched text was, in all."""


class Verdict(Value, frozen=True, kw_only=True):
    """What the guard says of a check."""

    check_id: str
    allow: bool
    rule: str | None = None
    """The rule that refused it."""
    policy: str | None = None
    edits: tuple[Span, ...] = ()
    findings: tuple[Finding, ...] = ()
    elapsed_us: int = 0
    problem: str | None = None
    """Why it could not be judged."""


class VerdictRecord(Value, frozen=True, kw_only=True):
    """A verdict as a fact: no text in it."""

    request_id: str
    project: str
    allow: bool
    findings: tuple[Finding, ...] = ()
    elapsed_us: int = 0
    problem: str | None = None
    """Why it could not be judged."""


@registered
class VerdictBatch(Contract, frozen=True, kw_only=True, tag="use.guard.batch.v1"):
    plane = "use"
    ids = ("guard_id",)
    guard_id: str
    records: tuple[VerdictRecord, ...]
