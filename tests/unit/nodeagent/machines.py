"""Recorded machines, as the agent finds them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.nodeagent.simulation.host_access import Described, Description

FOLDER = Path(__file__).parents[2] / "data" / "machines"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def described(name: str) -> Described:
    return Described(msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Description))
