"""Elections. A leader's decisions are fenced by the sequence of its own election."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from .contract import Event, Telemetry, registered

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Elected(Event, frozen=True, kw_only=True, tag="service.elected.v0"):
    """An instance took the service's lease. After a newer one nothing of an older leader is accepted."""

    ids = ("seat",)
    instance: str
    seat: str = "main"

    @property
    def term(self) -> int:
        """When it was, in microseconds since 1970. Elections are dated later than those before them, so that what was
        written under a higher term is newer, though the log went back meanwhile and numbers its events again."""
        return (self.at - _EPOCH) // timedelta(microseconds=1)


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
    """An instance's own voice, each second. While it does not hear that, the silence of machines says nothing."""

    ids = ("instance",)
    instance: str
    leads: bool = False
