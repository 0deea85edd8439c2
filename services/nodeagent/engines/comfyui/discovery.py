"""Where ComfyUI is."""

from __future__ import annotations

import logging

from services.nodeagent.engines.programs import Available, named
from services.nodeagent.settings import NodeAgentSettings

from .engine import Comfyui

log = logging.getLogger(__name__)


async def find(settings: NodeAgentSettings) -> Available | None:
    """The program the settings name, with the environment beside it."""
    main = named(settings, "comfyui")
    if main is None:
        return None
    folder = main.path.parent
    pythons = (folder / "venv/bin/python", folder / ".venv/bin/python")
    python = next((python for python in pythons if python.exists()), None)
    if python is None:
        log.warning("the engine comfyui is not offered: there is no venv/bin/python beside %s", main.path)
        return None
    data_dir = settings.data_dir / "comfyui"
    return Available(Comfyui(python=str(python), main=str(main.path), data_dir=str(data_dir)), main.found)
