"""Where engines are found: a program the settings name, an environment of its own, a package of the agent's."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import NamedTuple

from libs.events.machine import EngineFound
from services.nodeagent.adapters.engine import installed
from services.nodeagent.core.engines import Engine
from services.nodeagent.settings import NodeAgentSettings

log = logging.getLogger(__name__)

_PROBE_S = 30.0
"""Loading an engine's libraries for the first time reads gigabytes from a cold disk."""


class Available(NamedTuple):
    """An engine that can be started here, and what the cluster is told of it."""

    engine: Engine
    found: EngineFound


class Program(NamedTuple):
    """A program that runs an engine."""

    path: Path
    found: EngineFound


def named(settings: NodeAgentSettings, name: str) -> Program | None:
    """The program ``engine_programs`` names. It is not run to ask its version: it may be a script that starts a
    server."""
    path = settings.engine_programs.get(name)
    return Program(path, as_set(name, path)) if path is not None else None


def as_set(name: str, path: Path) -> EngineFound:
    """What is told of a program that the settings name."""
    return EngineFound(engine=name, version="as set", source=str(path))


async def own(settings: NodeAgentSettings, name: str, program: str, module: str) -> Program | None:
    """``program`` of the newest environment ``NAME-VERSION`` under the agent's engines folder in which ``module``
    loads."""
    folder = settings.engines_dir or settings.data_dir / "engines"
    environment = await asyncio.to_thread(installed.newest, folder, name, module)
    if environment is None:
        return None
    found = EngineFound(engine=name, version=environment.version, source=str(environment.folder))
    return Program(environment.folder / "bin" / program, found)


async def probed(name: str, command: list[str]) -> str | None:
    """The version that a program prints when it has loaded its engine, ``{"version": …}``; None when it cannot."""
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
