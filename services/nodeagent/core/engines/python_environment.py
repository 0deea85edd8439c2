"""Engines that live in a Python environment of their own."""

from __future__ import annotations

import posixpath


def isolated(program: str) -> dict[str, str]:
    """Nothing of the agent's own Python reaches the engine's, its tools come first on the path, and what it loads is
    here already: it asks no hub."""
    folder = posixpath.dirname(program)
    return {
        "PYTHONPATH": "",
        "VIRTUAL_ENV": posixpath.dirname(folder),
        "PATH": f"{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
