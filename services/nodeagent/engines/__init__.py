"""The engines, a folder each with the name it has in ``libs.engines.ENGINES``.

``engine.py``: what it needs, how it is started and how its figures are named; pure. ``discovery.py``: ``find``, which
looks for it on this machine. What a folder needs beside these (a launcher) is its own.
"""

from __future__ import annotations

import importlib

from services.nodeagent.settings import NodeAgentSettings

from .programs import Available


async def find(name: str, settings: NodeAgentSettings) -> Available | None:
    """The engine of a name as it can be started on this machine; None where it cannot be."""
    discovery = importlib.import_module(f"{__name__}.{name}.discovery")
    available: Available | None = await discovery.find(settings)
    return available
