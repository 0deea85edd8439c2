"""What a model needs of memory, from its headers alone, and the layouts in which a fleet can hold it."""

from __future__ import annotations

from .facts import Experts, Facts, Layers, Unreadable, Weights
from .hardware import Card, Host, hosts_of
from .layouts import Layout, Reason
from .memory import Load, Need
from .planner import Plan, plan
from .profiles import need_of, pace_of, problems_of, profile_of

__all__ = [
    "Card",
    "Experts",
    "Facts",
    "Host",
    "Layers",
    "Layout",
    "Load",
    "Need",
    "Plan",
    "Reason",
    "Unreadable",
    "Weights",
    "hosts_of",
    "need_of",
    "pace_of",
    "plan",
    "problems_of",
    "profile_of",
]
