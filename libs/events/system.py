"""What concerns the whole cluster: whether it serves at all, and how much power it may use."""

from __future__ import annotations

from .contract import Event, registered


class SystemEvent(Event, frozen=True, kw_only=True, tag="system.v0"):
    ids = ("seat",)
    seat: str = "main"


@registered
class SystemStopped(SystemEvent, frozen=True, kw_only=True, tag="system.stopped.v1"):
    """No model is wanted until the system is started; what each model wants is remembered."""

    reason: str = ""


@registered
class SystemStarted(SystemEvent, frozen=True, kw_only=True, tag="system.started.v1"):
    """Models are wanted again as they were."""


@registered
class RackCapped(SystemEvent, frozen=True, kw_only=True, tag="system.rack_capped.v1"):
    """The GPUs of a rack (the node label ``rack``) may be given work up to so much power in all."""

    rack: str
    watts: int | None = None
    """None: no limit any more."""
