"""Which engines this machine can run."""

from __future__ import annotations

import asyncio
import importlib.metadata

from libs.engines import ENGINES
from services.nodeagent.engines import find
from services.nodeagent.engines.programs import Available
from services.nodeagent.settings import NodeAgentSettings


def agent_version() -> str:
    """The version of llmgw this agent is."""
    return importlib.metadata.version("llmgw")


async def engines(settings: NodeAgentSettings) -> dict[str, Available]:
    """The engines that can run here, by name, each proved by loading it once in a process of its own."""
    names = [name for name in settings.engines if ENGINES[name].simulated or settings.simulated is None]
    found = await asyncio.gather(*(find(name, settings) for name in names))
    return {name: available for name, available in zip(names, found, strict=True) if available is not None}
