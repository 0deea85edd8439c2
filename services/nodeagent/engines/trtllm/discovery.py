"""Where TensorRT-LLM is."""

from __future__ import annotations

from services.nodeagent.engines.programs import Available, named
from services.nodeagent.settings import NodeAgentSettings

from .engine import Trtllm


async def find(settings: NodeAgentSettings) -> Available | None:
    """The program the settings name."""
    program = named(settings, "trtllm")
    return Available(Trtllm(program=str(program.path)), program.found) if program else None
