"""What a model needs of memory, from its headers alone, and the ways a fleet can hold it."""

from __future__ import annotations

from .facts import Experts, Facts, Layers, Unreadable, Weights
from .hardware import Card, Host, hosts_of
from .memory import Load, Need
from .profiles import need_of, pace_of, problems_of, profile_of
from .shapes import Reason, Way
from .ways import Plan, plan

__all__ = [
    "Card",
    "Experts",
    "Facts",
    "Host",
    "Layers",
    "Load",
    "Need",
    "Plan",
    "Reason",
    "Unreadable",
    "Way",
    "Weights",
    "hosts_of",
    "need_of",
    "pace_of",
    "plan",
    "problems_of",
    "profile_of",
]
