"""Where vLLM is."""

from __future__ import annotations

from services.nodeagent.engines.programs import Available, named, own
from services.nodeagent.settings import NodeAgentSettings

from .engine import Vllm


async def find(settings: NodeAgentSettings) -> Available | None:
    """The program the settings name, else the newest environment of its own."""
    program = named(settings, "vllm") or await own(settings, "vllm", "vllm", "vllm.entrypoints.openai.api_server")
    return Available(Vllm(program=str(program.path)), program.found) if program else None
