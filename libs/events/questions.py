"""What can be asked of a running service, and the answers."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from .commands import Problem
from .contract import Question, Value, registered
from .explanation import Explanation
from .headers import ModelHeaders
from .library import ImportUnderWay
from .model import ModelSpec
from .policy import PolicySpec
from .tenancy import Allowance, OrgSpec, Price, ProjectSpec, Role, TeamSpec
from .views import LibraryEntry, ModelView, NodeView


class Examined(Value, frozen=True, kw_only=True):
    """Whether a command would be taken, without sending it."""

    problems: tuple[Problem, ...] = ()
    unchanged: bool = False
    """It would change nothing."""


class Examine(Question, frozen=True, kw_only=True, tag="ask.examine.v0"):
    command: str
    """A command of the owner's, as its JSON text."""
    after: tuple[str, ...] = ()
    """Commands, likewise, taken as carried out before it, in this order; one that is refused changes nothing."""


@registered
class ExamineScheduler(Examine, frozen=True, kw_only=True, tag="ask.scheduler.examine.v1"):
    headers: ModelHeaders | None = None
    """Of the weights of the model that is defined, where the log does not have them."""


@registered
class ExamineAccounting(Examine, frozen=True, kw_only=True, tag="ask.accounting.examine.v1"): ...


@registered
class ExamineGuard(Examine, frozen=True, kw_only=True, tag="ask.guard.examine.v1"): ...


@registered
class ExamineMirror(Examine, frozen=True, kw_only=True, tag="ask.mirror.examine.v1"): ...


EXAMINES: dict[str, type[Examine]] = {
    "scheduler": ExamineScheduler,
    "accounting": ExamineAccounting,
    "guard": ExamineGuard,
    "mirror": ExamineMirror,
}
"""Service to how it is asked what would become of a command."""


class AskStanding(Question, frozen=True, kw_only=True, tag="ask.standing.v0"):
    """How an instance of a service is. It is answered always, also before the instance has read the log."""


@registered
class SchedulerStanding(AskStanding, frozen=True, kw_only=True, tag="ask.scheduler.standing.v1"): ...


@registered
class AccountingStanding(AskStanding, frozen=True, kw_only=True, tag="ask.accounting.standing.v1"): ...


@registered
class GuardStanding(AskStanding, frozen=True, kw_only=True, tag="ask.guard.standing.v1"): ...


@registered
class MirrorStanding(AskStanding, frozen=True, kw_only=True, tag="ask.mirror.standing.v1"): ...


STANDINGS: dict[str, type[AskStanding]] = {
    "scheduler": SchedulerStanding,
    "accounting": AccountingStanding,
    "guard": GuardStanding,
    "mirror": MirrorStanding,
}


class Standing(Value, frozen=True, kw_only=True):
    instance: str
    leads: bool = False
    position: int = 0
    """Sequence in EVENTS of the last event folded."""
    problems: tuple[str, ...] = ()
    """Why it does not do its work, or not all of it, and what whoever runs it should know, as sentences."""


@registered
class ExplainModel(Question, frozen=True, kw_only=True, tag="ask.scheduler.explain.v1"):
    model: str


class Happening(Value, frozen=True, kw_only=True):
    at: datetime
    sequence: int
    sentence: str


class ModelExplained(Value, frozen=True, kw_only=True):
    model: ModelView
    placements: dict[str, Explanation] = {}
    """Replica id to why it is where it is."""
    unplaced: Explanation | None = None
    recent: tuple[Happening, ...] = ()
    """The last happenings of the model and its replicas, oldest first."""


@registered
class ListNodes(Question, frozen=True, kw_only=True, tag="ask.scheduler.nodes.v1"): ...


@registered
class ListModels(Question, frozen=True, kw_only=True, tag="ask.scheduler.models.v1"): ...


class NodesAnswer(Value, frozen=True, kw_only=True):
    nodes: tuple[NodeView, ...]


class ModelsAnswer(Value, frozen=True, kw_only=True):
    models: tuple[ModelView, ...]
    specs: tuple[ModelSpec, ...]


@registered
class SchedulerState(Question, frozen=True, kw_only=True, tag="ask.scheduler.state.v1"): ...


class RackPower(Value, frozen=True, kw_only=True):
    rack: str
    watts: int
    """What its GPUs may draw together."""
    drawn_watts: int
    """What those may draw that hold replicas."""


class StateAnswer(Value, frozen=True, kw_only=True):
    position: int
    """Sequence of the last event folded."""
    hash: str
    leader: bool
    instance: str
    stopped: str | None = None
    """Why no model is wanted; None: the system serves."""
    paused: str = ""
    """Why what runs on silent machines is not placed anew; empty: it is."""
    racks: tuple[RackPower, ...] = ()
    """Those that are limited."""


Level = Literal["org", "team", "project", "key", "price"]


@registered
class ListTenancy(Question, frozen=True, kw_only=True, tag="ask.accounting.tenancy.v1"):
    """Who may use what, and what it costs, a page at a time."""

    of: tuple[Level, ...] = ("org", "team", "project", "key", "price")
    key_ids: tuple[str, ...] = ()
    """Of the keys only these; none: every key."""
    after: str = ""
    """What the page before this one said comes ``next``."""


class KeyInfo(Value, frozen=True, kw_only=True):
    key_id: str
    shown: str
    name: str
    project: str
    roles: tuple[Role, ...]
    allowance: Allowance
    expires_at: datetime | None = None
    revoked: bool = False


class TenancyAnswer(Value, frozen=True, kw_only=True):
    orgs: tuple[OrgSpec, ...] = ()
    teams: tuple[TeamSpec, ...] = ()
    projects: tuple[ProjectSpec, ...] = ()
    keys: tuple[KeyInfo, ...] = ()
    prices: tuple[Price, ...] = ()
    next: str = ""
    """What to ask for what comes after this page; empty: nothing does."""


@registered
class AskUsage(Question, frozen=True, kw_only=True, tag="ask.accounting.usage.v1"):
    by: str = "model"
    """``org``, ``team``, ``project``, ``key`` or ``model``."""
    since: datetime | None = None
    until: datetime | None = None
    after: str = ""
    """What the page before this one said comes ``next``."""


class UsageRow(Value, frozen=True, kw_only=True):
    name: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_micros: int
    waited_ms: float = 0.0
    """All its requests together, before there was an engine to ask: models on demand were started."""


class UsageAnswer(Value, frozen=True, kw_only=True):
    rows: tuple[UsageRow, ...]
    """By name."""
    next: str = ""
    """What to ask for what comes after this page; empty: nothing does."""


@registered
class ListBudgets(Question, frozen=True, kw_only=True, tag="ask.accounting.budgets.v1"):
    """Every budget, and what is spent of it, a page at a time."""

    after: str = ""
    """What the page before this one said comes ``next``."""


class BudgetRow(Value, frozen=True, kw_only=True):
    level: str
    """``project acme/research/chat``"""
    period: str
    """The one that holds: ``2026-11``."""
    amount_micros: int
    spent_micros: int
    """As the ledger has it; gateways also count what they are answering."""


class BudgetsAnswer(Value, frozen=True, kw_only=True):
    rows: tuple[BudgetRow, ...]
    """From organisations down to keys."""
    next: str = ""
    """What to ask for what comes after this page; empty: nothing does."""


@registered
class ListPolicies(Question, frozen=True, kw_only=True, tag="ask.guard.policies.v1"): ...


class PoliciesAnswer(Value, frozen=True, kw_only=True):
    policies: tuple[PolicySpec, ...]


@registered
class ListLibrary(Question, frozen=True, kw_only=True, tag="ask.mirror.library.v1"): ...


class LibraryAnswer(Value, frozen=True, kw_only=True):
    entries: tuple[LibraryEntry, ...]
    imports: tuple[ImportUnderWay, ...] = ()
    """In the order in which they are carried out."""


@registered
class AskLogs(Question, frozen=True, kw_only=True, tag="ask.node.logs.v1"):
    """The last lines of an engine's or the agent's output, from the machine they are on."""

    ids = ("machine_id",)
    machine_id: str
    source: str = "agent"
    """``agent``, or a shard id."""
    lines: int = 200
    after: int = 0
    """Only lines after this cursor (to follow)."""


class LogsAnswer(Value, frozen=True, kw_only=True):
    lines: tuple[str, ...]
    cursor: int


@registered
class AskFabricMap(Question, frozen=True, kw_only=True, tag="ask.node.fabric_map.v1"):
    """The fabric as one port of a machine sees it. Takes seconds to a minute on a large one."""

    ids = ("machine_id",)
    machine_id: str
    nic: str = msgspec.field(name="adapter")
    port: int = 1


class FabricSwitch(Value, frozen=True, kw_only=True):
    guid: str
    name: str
    tier: str
    """``leaf`` (machines are attached), ``spine`` or ``core``."""


class FabricAdapter(Value, frozen=True, kw_only=True):
    guid: str
    """Of the node, sixteen hex digits as a port's ``node_guid``."""
    machine: str
    """As the fabric describes it, which is usually the host name."""
    nic: str = msgspec.field(name="adapter")
    leaf: str
    rate_gbps: float | None = None


class FabricCable(Value, frozen=True, kw_only=True):
    """A cable slower than most between the same tiers."""

    one: str
    other: str
    link: str
    """``4xNDR``."""
    rate_gbps: float
    expected_gbps: float


class FabricMap(Value, frozen=True, kw_only=True):
    switches: tuple[FabricSwitch, ...] = ()
    nics: tuple[FabricAdapter, ...] = msgspec.field(default=(), name="adapters")
    slow_cables: tuple[FabricCable, ...] = ()
    cables: int = 0
    rails: dict[str, tuple[str, ...]] = {}
    """Adapter name to the leaves it is on over all machines; one leaf each: the fabric is aligned by rails."""


class Finding(Value, frozen=True, kw_only=True):
    """One thing a doctor found."""

    severity: Literal["broken", "costly", "note", "fine"]
    """``broken``: something cannot run. ``costly``: it runs worse than it could."""
    subject: str
    found: str
    """A sentence."""
    costs: str = ""
    """What it costs."""
    fix: str = ""


@registered
class AskHeaders(Question, frozen=True, kw_only=True, tag="ask.node.headers.v1"):
    """What a model's headers say that the library does not have: read by a node, in its folder or at its hub."""

    ids = ("machine_id",)
    machine_id: str
    source: str
    """``file:…`` or ``hf:…``."""


class HeadersAnswer(Value, frozen=True, kw_only=True):
    headers: ModelHeaders


@registered
class AskDoctor(Question, frozen=True, kw_only=True, tag="ask.node.doctor.v1"):
    """What is wrong with a machine, by its own look. Takes seconds."""

    ids = ("machine_id",)
    machine_id: str


class DoctorAnswer(Value, frozen=True, kw_only=True):
    findings: tuple[Finding, ...] = ()
    """The most serious first."""
