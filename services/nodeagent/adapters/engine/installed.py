"""Engines in environments of their own, ``<folder>/<engine>-<version>/``: present once one was seen to load."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path

import msgspec

from services.nodeagent.adapters.disk import durable

log = logging.getLogger(__name__)

_LOAD_S = 180.0
"""Loading an engine for the first time compiles its Python files and reads gigabytes from a cold disk."""


class Installed(msgspec.Struct, frozen=True):
    """An environment in which an engine loads, and the version of the engine."""

    folder: Path
    version: str


class _Proof(msgspec.Struct, frozen=True):
    """Kept beside an environment that was seen to load; it stands as long as its packages are the same."""

    version: str
    packages_ns: int


def newest(folder: Path, engine: str, module: str) -> Installed | None:
    """The newest version of an engine whose ``module`` loads. Blocks, the first time for as long as loading takes."""
    for environment in sorted(folder.glob(f"{engine}-*"), key=lambda path: _order(path.name), reverse=True):
        version = _proved(environment, engine, module)
        if version is not None:
            return Installed(environment, version)
    return None


def _order(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _proved(folder: Path, engine: str, module: str) -> str | None:
    packages = next(iter(folder.glob("lib/python3*/site-packages")), None)
    if packages is None or not (folder / "bin" / "python").exists():
        return None
    note, changed = folder / "proved.json", packages.stat().st_mtime_ns
    try:
        proof = msgspec.json.decode(note.read_bytes(), type=_Proof)
        if proof.packages_ns == changed:
            return proof.version
    except (OSError, msgspec.DecodeError):
        pass
    version = _loaded(folder / "bin" / "python", engine, module)
    if version is not None:
        try:
            durable.write(note, msgspec.json.encode(_Proof(version, packages.stat().st_mtime_ns)))
        except OSError as error:
            log.warning("that %s loads cannot be noted: %s", folder, error.strerror)
    return version


def _loaded(python: Path, engine: str, module: str) -> str | None:
    proof = f"import importlib.metadata as m, {module}; print('version', m.version({engine!r}))"
    try:
        ran = subprocess.run(
            [str(python), "-c", proof],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LOAD_S,
            env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": "/nonexistent", "HF_HUB_OFFLINE": "1"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("the engine in %s could not be loaded and is not offered: %s", python.parent.parent, error)
        return None
    printed = ran.stdout.decode(errors="replace").split()
    if ran.returncode != 0 or len(printed) < 2 or printed[-2] != "version":
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
        log.warning("the engine in %s does not load and is not offered: %s", python.parent.parent, " ".join(last))
        return None
    return printed[-1]
