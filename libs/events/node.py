"""What the scheduler holds to be true of a node."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from .contract import Event, Value, registered

ErrandKind = Literal["restart_agent", "restart_shard", "change_settings", "remove_weights"]
"""Another kind needs a feature of its own (``MachineRegistered.features``): an agent cannot read what holds a kind it
does not know, and that is all that it should run."""


class Errand(Value, frozen=True, kw_only=True):
    """Something a machine's agent is to do once."""

    kind: ErrandKind
    shard_id: str = ""
    """Whose engine is restarted."""
    weights: str = ""
    """``NAME@VERSION``, whose copy on the machine is removed."""
    settings: dict[str, str] = {}
    """Setting of the agent to its new value as JSON; an empty text: what its own settings say."""


class NodeEvent(Event, frozen=True, kw_only=True, tag="node.v0"):
    ids = ("machine_id",)
    machine_id: str


@registered
class NodeJoined(NodeEvent, frozen=True, kw_only=True, tag="node.joined.v1"):
    """A machine that was not known may now be given work."""


@registered
class NodeLost(NodeEvent, frozen=True, kw_only=True, tag="node.lost.v1"):
    """Nothing was heard from it for longer than the deadline, while the scheduler itself was hearing. Nothing new goes
    there; its engines may well be serving, and routes keep them until others serve in their place."""

    silent_ms: int
    deadline_ms: int


@registered
class NodeReturned(NodeEvent, frozen=True, kw_only=True, tag="node.returned.v1"):
    """A lost node is heard again."""

    away_ms: int


@registered
class NodeCordoned(NodeEvent, frozen=True, kw_only=True, tag="node.cordoned.v1"):
    """Gets nothing new; what runs stays."""

    reason: str = ""


@registered
class NodeDrained(NodeEvent, frozen=True, kw_only=True, tag="node.drained.v1"):
    """Gets nothing new; what runs is moved away."""

    reason: str = ""
    force: bool = False
    """What has nowhere to go is stopped as well."""


@registered
class NodeUncordoned(NodeEvent, frozen=True, kw_only=True, tag="node.uncordoned.v1"):
    """Takes work again, after a cordon or a drain."""


@registered
class NodeLent(NodeEvent, frozen=True, kw_only=True, tag="node.lent.v1"):
    """Given to somebody else, a batch system for one: what runs is moved away, nothing new comes."""

    to: str = ""


@registered
class NodeReclaimed(NodeEvent, frozen=True, kw_only=True, tag="node.reclaimed.v1"):
    """Ours again."""


@registered
class NodeRetired(NodeEvent, frozen=True, kw_only=True, tag="node.retired.v1"):
    """A lost machine is known no more, nor what ran on it. It joins anew when its agent registers again."""

    lost_at: datetime
    reason: str = ""


@registered
class NodeErrandGiven(NodeEvent, frozen=True, kw_only=True, tag="node.errand_given.v1"):
    """An operator asked something of a machine's agent. The errand is known by this event's sequence."""

    errand: Errand
    reason: str = ""
