"""Elections. A leader's decisions are fenced by the sequence of its own election."""

from __future__ import annotations

from .contract import Event, Telemetry, registered


class Elected(Event, frozen=True, kw_only=True, tag="service.elected.v0"):
    """An instance took the service's lease. After a newer one nothing of an older leader is accepted."""

    ids = ("seat",)
    instance: str
    seat: str = "main"


@registered
class SchedulerElected(Elected, frozen=True, kw_only=True, tag="scheduler.elected.v1"): ...


@registered
class AccountingElected(Elected, frozen=True, kw_only=True, tag="accounting.elected.v1"): ...


@registered
class GuardElected(Elected, frozen=True, kw_only=True, tag="guard.elected.v1"): ...


@registered
class MirrorElected(Elected, frozen=True, kw_only=True, tag="mirror.elected.v1"): ...


ELECTIONS: dict[str, type[Elected]] = {
    "scheduler": SchedulerElected,
    "accounting": AccountingElected,
    "guard": GuardElected,
    "mirror": MirrorElected,
}


@registered
class SchedulerPulse(Telemetry, frozen=True, kw_only=True, tag="tel.scheduler.pulse.v1"):
    """The leader's own voice. While it does not hear itself, the silence of machines says nothing about them."""

    ids = ("instance",)
    instance: str
