"""``python -m services.nodeagent.doctor``: what is wrong with this machine, without the bus.

Exit code 0: nothing is broken. 1: something is, or it could not be looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections import Counter
from pathlib import Path

import msgspec

from libs.events.questions import Finding
from libs.runtime import settings as settings_files
from libs.runtime.settings import SettingsError
from libs.runtime.visible import in_json, visible

from .adapters.host.host_access import ThisMachine
from .core.machine.diagnostics import Facts
from .machine.diagnostics import examine, gather
from .machine.discovery import engines
from .machine.overrides import Changes
from .settings import NodeAgentSettings

_HEADS = {"broken": "BROKEN", "costly": "COSTLY", "note": "note  ", "fine": "fine  "}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="llmgw doctor", allow_abbrev=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--settings", type=Path)
    options = parser.parse_args(arguments)
    try:
        settings = load(options.settings)
    except SettingsError as error:
        sys.stderr.write(f"llmgw: {error}\n")
        return 1
    there = tuple(sorted(asyncio.run(engines(settings))))
    facts = gather(ThisMachine(), settings, there)
    found = examine(facts).findings
    sys.stdout.write(
        in_json(as_json(settings.machine_id, facts, found))
        if options.json
        else visible(as_text(settings.machine_id, found))
    )
    return code(found)


def load(file: Path | None) -> NodeAgentSettings:
    """The agent's settings with what was changed of them, or those of an agent that has none. Raises SettingsError."""
    if file is not None:
        own = settings_files.load(NodeAgentSettings, "nodeagent", file).value
        return Changes(own.data_dir).over(own)
    return NodeAgentSettings(data_dir=Path("/var/lib/llmgw/nodeagent"), machine_id=socket.gethostname())


def code(found: tuple[Finding, ...]) -> int:
    return int(any(one.severity == "broken" for one in found))


def as_json(machine_id: str, facts: Facts, found: tuple[Finding, ...]) -> str:
    """Findings, and every fact they were concluded from: what can be sent to somebody who cannot log in here."""
    whole = {"machine": machine_id, "findings": found, "facts": facts}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def as_text(machine_id: str, found: tuple[Finding, ...]) -> str:
    counts = Counter(one.severity for one in found)
    lines = [f"{machine_id}: {counts['broken']} broken, {counts['costly']} costly, {counts['note']} notes, "
             f"{counts['fine']} fine"]  # fmt: skip
    for one in found:
        lines.append(f"{_HEADS[one.severity]}  {one.subject}: {one.found}")
        if one.costs:
            lines.append(f"        costs: {one.costs}")
        if one.fix:
            lines.append(f"        fix:   {one.fix}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
