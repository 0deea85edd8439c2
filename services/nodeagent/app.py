"""The node agent's service, wired: one agent for this machine, or one for each invented machine of a fleet file."""

from __future__ import annotations

from libs.bus import Bus

from .agent import NodeAgent
from .fleet import Fleet
from .settings import NodeAgentSettings


def build(settings: NodeAgentSettings, bus: Bus) -> NodeAgent | Fleet:
    """The service these settings ask for."""
    return NodeAgent(settings, bus) if settings.fleet is None else Fleet(settings, bus.fail)
