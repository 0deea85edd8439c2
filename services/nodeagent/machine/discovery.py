"""Which engines this machine can run."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import logging
import sys
from pathlib import Path
from typing import Any

from libs.events.machine import EngineFound
from services.nodeagent.adapters.engine import installed
from services.nodeagent.core.engines import (
    Comfyui,
    Engine,
    LlamaCpp,
    Sglang,
    Sim,
    Trtllm,
    Vllm,
)
from services.nodeagent.settings import NodeAgentSettings

log = logging.getLogger(__name__)

_PROBE_S = 30.0
"""Loading an engine's libraries for the first time reads gigabytes from a cold disk."""


def agent_version() -> str:
    return importlib.metadata.version("llmgw")


async def engines(settings: NodeAgentSettings) -> dict[str, tuple[Engine, EngineFound]]:
    """The engines that can run here, each proved by loading it once in a process of its own."""
    names = [name for name in settings.engines if name == "sim" or settings.simulated is None]
    looked = await asyncio.gather(*(_LOOKS[name](settings) for name in names))
    return {name: found for name, found in zip(names, looked, strict=True) if found is not None}


async def _llamacpp(settings: NodeAgentSettings) -> tuple[Engine, EngineFound] | None:
    binary = settings.llama_server
    if binary is not None:
        # Taken at its word, not run to ask its version: such a thing may be a script that starts a server.
        found = EngineFound(engine="llamacpp", version="as set", source=str(binary))
        return LlamaCpp(python=sys.executable, binary=str(binary)), found
    launcher = [sys.executable, "-P", "-m", "services.nodeagent.engines.llamacpp_launcher", "--probe"]
    version = await _probed("llamacpp", launcher)
    if version is None:
        return None
    found = EngineFound(engine="llamacpp", version=version, source="package xllamacpp")
    return LlamaCpp(python=sys.executable), found


async def _sim(settings: NodeAgentSettings) -> tuple[Engine, EngineFound] | None:
    try:
        # Part of this very program: it loads here or nowhere.
        importlib.import_module("libs.testing.sim_engine")
    except ImportError as error:
        log.info("the engine sim is not on this machine: %s", error)
        return None
    return Sim(python=sys.executable), EngineFound(engine="sim", version=agent_version(), source="package llmgw")


def _named(settings: NodeAgentSettings, name: Any) -> tuple[str, EngineFound] | None:
    """A program the settings name: not run to ask its version, it may be a script that starts a server."""
    program = settings.engine_programs.get(name)
    if program is None:
        return None
    return str(program), EngineFound(engine=name, version="as set", source=str(program))


async def _own(settings: NodeAgentSettings, name: str, program: str) -> tuple[str, EngineFound] | None:
    """A program in an environment under the agent's engines folder, proved by loading it once."""
    folder = settings.engines_dir or settings.data_dir / "engines"
    found = await asyncio.to_thread(installed.newest, folder, name)
    if found is None:
        return None
    return str(found.folder / "bin" / program), EngineFound(
        engine=name, version=found.version, source=str(found.folder)
    )


async def _vllm(settings: NodeAgentSettings) -> tuple[Engine, EngineFound] | None:
    there = _named(settings, "vllm") or await _own(settings, "vllm", "vllm")
    return (Vllm(program=there[0]), there[1]) if there else None


async def _sglang(settings: NodeAgentSettings) -> tuple[Engine, EngineFound] | None:
    there = _named(settings, "sglang") or await _own(settings, "sglang", "python")
    launcher = str(Path(__file__).parent.parent / "engines" / "sglang_launcher.py")
    return (Sglang(python=there[0], launcher=launcher), there[1]) if there else None


async def _trtllm(settings: NodeAgentSettings) -> tuple[Engine, EngineFound] | None:
    there = _named(settings, "trtllm")
    return (Trtllm(program=there[0]), there[1]) if there else None


async def _comfyui(settings: NodeAgentSettings) -> tuple[Engine, EngineFound] | None:
    there = _named(settings, "comfyui")
    if there is None:
        return None
    folder = Path(there[0]).parent
    python = next((one for one in (folder / "venv/bin/python", folder / ".venv/bin/python") if one.exists()), None)
    if python is None:
        log.warning("the engine comfyui is not offered: there is no venv/bin/python beside %s", there[0])
        return None
    data_dir = settings.data_dir / "comfyui"
    return Comfyui(python=str(python), main=there[0], data_dir=str(data_dir)), there[1]


_LOOKS = {
    "llamacpp": _llamacpp,
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "comfyui": _comfyui,
    "sim": _sim,
}


async def _probed(name: str, command: list[str]) -> str | None:
    """The version an engine reports when it is loaded, or None when it cannot be."""
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PROBE_S):
            out, complaint = await child.communicate()
    except TimeoutError:
        child.kill()
        await child.wait()
        log.warning("the engine %s was not loaded within %g s and is not offered", name, _PROBE_S)
        return None
    if child.returncode != 0:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        log.info("the engine %s is not on this machine: %s", name, " ".join(last) or f"exit {child.returncode}")
        return None
    try:
        return str(json.loads(out)["version"])
    except (ValueError, KeyError, TypeError):
        log.warning("the engine %s gave no version and is not offered", name)
        return None
