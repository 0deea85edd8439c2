"""What concerns the whole cluster: whether it serves at all, how much power it may use, and whether what is lost is
placed anew."""

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
    drawn_watts: int | None = None
    """What the GPUs that held replicas then may have drawn: above the cap nothing is stopped, and nothing is added."""


@registered
class PlacingPaused(SystemEvent, frozen=True, kw_only=True, tag="system.placing_paused.v1"):
    """So many machines fell silent within so short a time that their agents, the bus or the network are likelier to be
    at fault than the machines: what runs on them is not placed anew as soon as usual, and goes on serving."""

    silent: int
    """That were silent for ``quiet_ms``, or lost, within ``within_ms``."""
    of: int
    """All machines but those that have been lost for longer."""
    least: int
    """Fewer silent ones than that, or a smaller share than ``share``, are taken for lost one by one."""
    share: float
    quiet_ms: int
    within_ms: int
    lasts_ms: int
    """While this lasts, one that is silent for so long is lost."""


@registered
class PlacingResumed(SystemEvent, frozen=True, kw_only=True, tag="system.placing_resumed.v1"):
    """So few were silent lately that each is taken for lost as soon as usual."""

    silent: int
    of: int
    paused_ms: int
    reason: str
