"""Where SGLang is."""

from __future__ import annotations

from pathlib import Path

from services.nodeagent.engines.programs import Available, named, own
from services.nodeagent.settings import NodeAgentSettings

from .engine import Sglang

LAUNCHER = Path(__file__).with_name("launcher.py")


async def find(settings: NodeAgentSettings) -> Available | None:
    """The python the settings name, else that of the newest environment of its own."""
    python = named(settings, "sglang") or await own(settings, "sglang", "python", "sglang.launch_server")
    return Available(Sglang(python=str(python.path), launcher=str(LAUNCHER)), python.found) if python else None
