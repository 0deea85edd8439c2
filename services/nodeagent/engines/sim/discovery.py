"""Where the simulated engine is."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import sys

from libs.events.machine import EngineFound
from services.nodeagent.engines.programs import Available
from services.nodeagent.settings import NodeAgentSettings

from .engine import Sim

log = logging.getLogger(__name__)


async def find(settings: NodeAgentSettings) -> Available | None:
    """Part of this very program: it loads here or nowhere."""
    try:
        importlib.import_module("libs.testing.sim_engine")
    except ImportError as error:
        log.info("the engine sim is not on this machine: %s", error)
        return None
    found = EngineFound(engine="sim", version=importlib.metadata.version("llmgw"), source="package llmgw")
    return Available(Sim(python=sys.executable), found)
