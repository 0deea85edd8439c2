"""Where llama.cpp is."""

from __future__ import annotations

import sys

from libs.events.machine import EngineFound
from services.nodeagent.engines.programs import Available, as_set, probed
from services.nodeagent.settings import NodeAgentSettings

from .engine import LAUNCHER, LlamaCpp


async def find(settings: NodeAgentSettings) -> Available | None:
    """The ``llama-server`` the settings name, else the server in the package xllamacpp."""
    binary = settings.llama_server
    if binary is not None:
        return Available(LlamaCpp(python=sys.executable, binary=str(binary)), as_set("llamacpp", binary))
    version = await probed("llamacpp", [sys.executable, "-P", "-m", LAUNCHER, "--probe"])
    if version is None:
        return None
    found = EngineFound(engine="llamacpp", version=version, source="package xllamacpp")
    return Available(LlamaCpp(python=sys.executable), found)
