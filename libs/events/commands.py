"""Wishes and their outcomes."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from .budget import Budget
from .contract import Command, Value, registered
from .model import ModelSpec, Scaling
from .node import Errand
from .policy import PolicySpec
from .tenancy import Allowance, OrgSpec, Price, ProjectSpec, Role, TeamSpec


class Problem(Value, frozen=True, kw_only=True):
    """One thing that is wrong with a command."""

    path: str
    """Dotted path of the field: ``profiles[0].memory_mb``."""
    message: str
    """What was wrong, what was found, what to do."""


class Outcome(Value, frozen=True, kw_only=True):
    """What became of a command."""

    command_id: str
    status: Literal["done", "unchanged", "refused", "failed"]
    """``failed``: the owner could not carry it out though it was right; it may be sent again."""
    message: str = ""
    problems: tuple[Problem, ...] = ()
    event: str | None = None
    """Tag of the event it caused."""
    sequence: int | None = None
    """That event's sequence in EVENTS."""


# to the scheduler


@registered
class DefineModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.define_model.v1"):
    spec: ModelSpec


@registered
class RemoveModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.remove_model.v1"):
    model: str


@registered
class ScaleModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.scale_model.v1"):
    model: str
    scaling: Scaling


@registered
class RestartModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.restart_model.v1"):
    """Unparks a model whose replicas failed too often; replaces the replicas of one that runs, one by one."""

    model: str
    in_place: bool = False
    """Each is stopped before its successor starts: for when there is no room beside it."""
    reason: str = ""


@registered
class StopModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.stop_model.v1"):
    model: str
    reason: str = ""


@registered
class StartModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.start_model.v1"):
    model: str


@registered
class WakeModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.wake_model.v1"):
    """A request waits for an on-demand model. Said again every few seconds for as long as one waits."""

    model: str


@registered
class PromoteModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.promote_model.v1"):
    """Take the definition on trial as it is, without waiting for the judgement."""

    model: str
    reason: str = ""


@registered
class RollBackModel(Command, frozen=True, kw_only=True, tag="cmd.scheduler.roll_back_model.v1"):
    """Drop the definition on trial."""

    model: str
    reason: str = ""


@registered
class StopSystem(Command, frozen=True, kw_only=True, tag="cmd.scheduler.stop_system.v1"):
    reason: str = ""


@registered
class StartSystem(Command, frozen=True, kw_only=True, tag="cmd.scheduler.start_system.v1"): ...


@registered
class CapRack(Command, frozen=True, kw_only=True, tag="cmd.scheduler.cap_rack.v1"):
    rack: str
    watts: int | None = None


@registered
class LendNode(Command, frozen=True, kw_only=True, tag="cmd.scheduler.lend_node.v1"):
    machine_id: str
    to: str = ""


@registered
class ReclaimNode(Command, frozen=True, kw_only=True, tag="cmd.scheduler.reclaim_node.v1"):
    machine_id: str


@registered
class CordonNode(Command, frozen=True, kw_only=True, tag="cmd.scheduler.cordon_node.v1"):
    machine_id: str
    reason: str = ""


@registered
class DrainNode(Command, frozen=True, kw_only=True, tag="cmd.scheduler.drain_node.v1"):
    machine_id: str
    reason: str = ""
    force: bool = False
    """Stop what has nowhere to go."""


@registered
class UncordonNode(Command, frozen=True, kw_only=True, tag="cmd.scheduler.uncordon_node.v1"):
    machine_id: str


@registered
class RetireNode(Command, frozen=True, kw_only=True, tag="cmd.scheduler.retire_node.v1"):
    """Know a lost machine no more."""

    machine_id: str
    reason: str = ""


@registered
class GiveErrand(Command, frozen=True, kw_only=True, tag="cmd.scheduler.give_errand.v1"):
    """Have a machine's agent do something once; the outcome's sequence is what its end is told under."""

    machine_id: str
    errand: Errand
    reason: str = ""


# to accounting


@registered
class DefineOrg(Command, frozen=True, kw_only=True, tag="cmd.accounting.define_org.v1"):
    spec: OrgSpec


@registered
class RemoveOrg(Command, frozen=True, kw_only=True, tag="cmd.accounting.remove_org.v1"):
    org: str


@registered
class DefineTeam(Command, frozen=True, kw_only=True, tag="cmd.accounting.define_team.v1"):
    spec: TeamSpec


@registered
class RemoveTeam(Command, frozen=True, kw_only=True, tag="cmd.accounting.remove_team.v1"):
    team: str


@registered
class DefineProject(Command, frozen=True, kw_only=True, tag="cmd.accounting.define_project.v1"):
    spec: ProjectSpec


@registered
class RemoveProject(Command, frozen=True, kw_only=True, tag="cmd.accounting.remove_project.v1"):
    project: str


AllowancePart = Literal["models", "rpm", "tpm", "policies", "budgets"]


class Amendment(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of an allowance is to be otherwise. What is not named here stays as it is."""

    models: tuple[str, ...] | None = None
    rpm: int | None = None
    tpm: int | None = None
    policies: tuple[str, ...] | None = None
    """All that shall apply from here down."""
    budgets: tuple[Budget, ...] | None = None
    """Each in place of the one for the same kind of period; others stay."""
    clear: tuple[AllowancePart, ...] = ()
    """Parts that are as if never said; before the others are looked at."""


@registered
class AmendLevel(Command, frozen=True, kw_only=True, tag="cmd.accounting.amend_level.v1"):
    """Change a part of what an organisation, team or project allows."""

    level: str
    """``org``, ``org/team`` or ``org/team/project``."""
    allowance: Amendment


@registered
class CreateKey(Command, frozen=True, kw_only=True, tag="cmd.accounting.create_key.v1"):
    key_id: str
    key_sha256: str
    shown: str
    project: str
    name: str = ""
    roles: tuple[Role, ...] = ("client",)
    allowance: Allowance = Allowance()
    expires_at: datetime | None = None


@registered
class AmendKey(Command, frozen=True, kw_only=True, tag="cmd.accounting.amend_key.v1"):
    """Change a part of a key. What is not named stays as it is."""

    key_id: str
    name: str | None = None
    allowance: Amendment = Amendment()
    expires_at: datetime | None = None
    never_expires: bool = False


@registered
class ChangeKey(Command, frozen=True, kw_only=True, tag="cmd.accounting.change_key.v1"):
    """Replace what a key is called, what it allows and when it expires, all of it: what is left out is taken away."""

    key_id: str
    name: str = ""
    allowance: Allowance = Allowance()
    expires_at: datetime | None = None


@registered
class RevokeKey(Command, frozen=True, kw_only=True, tag="cmd.accounting.revoke_key.v1"):
    key_id: str
    reason: str = ""


@registered
class DefinePrice(Command, frozen=True, kw_only=True, tag="cmd.accounting.define_price.v1"):
    price: Price


# to the guard


@registered
class DefinePolicy(Command, frozen=True, kw_only=True, tag="cmd.guard.define_policy.v1"):
    spec: PolicySpec


@registered
class RemovePolicy(Command, frozen=True, kw_only=True, tag="cmd.guard.remove_policy.v1"):
    policy: str


# to the mirror


@registered
class ImportVersion(Command, frozen=True, kw_only=True, tag="cmd.mirror.import_version.v1"):
    """Begin an import. Its outcome says that it began; how it ended is told under that event's sequence."""

    name: str
    source: str
    """``path:/abs/file-or-folder`` or ``package:PYTHON_MODULE`` (a model package that has ``assemble()``)."""
    licence: str = ""


@registered
class CancelImport(Command, frozen=True, kw_only=True, tag="cmd.mirror.cancel_import.v1"):
    """Give up the import of a name. What it brought in is dropped."""

    name: str
    reason: str = ""


@registered
class RemoveVersion(Command, frozen=True, kw_only=True, tag="cmd.mirror.remove_version.v1"):
    name: str
    version: str
