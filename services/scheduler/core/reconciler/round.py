"""One round of decisions: what it is decided on, and what the models looked at before have changed about that."""

from __future__ import annotations

from datetime import datetime

import msgspec

from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.inputs.traffic import Traffic
from services.scheduler.core.placement.candidates import Tables
from services.scheduler.core.placement.capacity import Capacity
from services.scheduler.core.state.facts import Replica
from services.scheduler.core.state.state import State

from .starts import Starts


class Round(msgspec.Struct):
    """One round of decisions."""

    state: State
    capacity: Capacity
    starts: Starts
    tables: Tables
    heartbeats: Heartbeats | None
    traffic: Traffic | None
    now: datetime
    acted: set[str] = msgspec.field(default_factory=set)
    """Models something was decided about."""
    disturbed: set[str] = msgspec.field(default_factory=set)
    """Models that were made to give room: not to be looked at on the state before that."""
    leaving: list[Replica] = msgspec.field(default_factory=list)
    """Replicas that this round told to go, or gave a successor."""
    replaced: list[Replica] | None = None
    """Replicas that leave as soon as their successors, which are starting, serve; None: not looked up yet."""
