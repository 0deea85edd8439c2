"""What is wrong with this machine, without the bus: ``llmgw doctor``."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from libs.events.questions import Finding
from libs.runtime import settings as settings_files

from .adapters.host.host_access import ThisMachine
from .core.machine.diagnostics import Facts
from .machine.diagnostics import examine, gather
from .machine.discovery import engines
from .machine.overrides import Overrides
from .settings import NodeAgentSettings

_HEADS = {"broken": "BROKEN", "costly": "COSTLY", "note": "note  ", "fine": "fine  "}


@dataclass(frozen=True)
class Report:
    """What was found on this machine, and every fact it was concluded from."""

    machine_id: str
    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> bool:
        """Whether something cannot work as it is."""
        return bool(code(self.findings))

    def json(self) -> str:
        """Findings and facts as indented JSON."""
        return as_json(self.machine_id, self.facts, self.findings)

    def text(self) -> str:
        """Findings as lines for people."""
        return as_text(self.machine_id, self.findings)


def report(file: Path | None) -> Report:
    """Look this machine over, with the settings of its agent where there is a file of them. Raises SettingsError."""
    settings = load(file)
    facts = gather(ThisMachine(), settings, tuple(sorted(asyncio.run(engines(settings)))))
    return Report(settings.machine_id, facts, examine(facts).findings)


def load(file: Path | None) -> NodeAgentSettings:
    """The agent's settings with what was changed of them, or those of an agent that has none. Raises SettingsError."""
    if file is not None:
        own = settings_files.load(NodeAgentSettings, "nodeagent", file).value
        return Overrides(own.data_dir).over(own)
    return NodeAgentSettings(data_dir=Path("/var/lib/llmgw/nodeagent"), machine_id=socket.gethostname())


def code(findings: tuple[Finding, ...]) -> int:
    """The exit status: 1 when something cannot work as it is, else 0."""
    return int(any(finding.severity == "broken" for finding in findings))


def as_json(machine_id: str, facts: Facts, findings: tuple[Finding, ...]) -> str:
    """Findings, and every fact they were concluded from: what can be sent to somebody who cannot log in here."""
    whole = {"machine": machine_id, "findings": findings, "facts": facts}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def as_text(machine_id: str, findings: tuple[Finding, ...]) -> str:
    """Findings as lines for people, each with what it costs and how it is mended."""
    counts = Counter(finding.severity for finding in findings)
    lines = [f"{machine_id}: {counts['broken']} broken, {counts['costly']} costly, {counts['note']} notes, "
             f"{counts['fine']} fine"]  # fmt: skip
    for finding in findings:
        lines.append(f"{_HEADS[finding.severity]}  {finding.subject}: {finding.found}")
        if finding.costs:
            lines.append(f"        costs: {finding.costs}")
        if finding.fix:
            lines.append(f"        fix:   {finding.fix}")
    return "\n".join(lines) + "\n"
