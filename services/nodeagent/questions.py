"""Questions about this machine that its agent answers: logs, hardware, fabric, headers of weights."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from libs.events.questions import (
    AskDoctor,
    AskFabricMap,
    AskHeaders,
    AskLogs,
    DoctorAnswer,
    FabricMap,
    HeadersAnswer,
    LogsAnswer,
)
from libs.events.refusal import Refused
from libs.runtime.logs import blank

from .adapters.disk.shard_files import ShardFiles
from .adapters.engine.output import tail
from .adapters.host.fabric import ScanFailed
from .adapters.weights.hub import Hub
from .machine.diagnostics import examine, gather
from .settings import NodeAgentSettings
from .shard import weight_headers
from .shard.node import Node
from .shard.supervisor import Supervisor

_MAX_LINES = 2000


class AgentLines(logging.Handler):
    """The agent's last log lines, numbered from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self._lines.append(blank(self.format(record)))
        self._count += 1

    def after(self, cursor: int, lines: int) -> LogsAnswer:
        """At most the last ``lines`` lines after line ``cursor``; of a cursor beyond the last one, the last lines."""
        new = min(self._count - cursor if cursor <= self._count else self._count, lines, len(self._lines))
        return LogsAnswer(lines=tuple(self._lines)[len(self._lines) - new :], cursor=self._count)


class Logs:
    """Output of engines, and of the agent itself."""

    def __init__(self, files: ShardFiles, agent: AgentLines) -> None:
        self._files = files
        self._agent = agent

    async def answer(self, question: AskLogs) -> LogsAnswer:
        """The last lines after the asker's cursor. Raises Refused for a source that is not here."""
        lines = max(0, min(question.lines, _MAX_LINES))
        if question.source == "agent":
            return self._agent.after(question.after, lines)
        shards = self._files.shards_with_output()
        if question.source not in shards:
            sources = ", ".join(["agent", *shards])
            message = f"{question.source} has no output on {question.machine_id}; there is: {sources}"
            raise Refused.one("source", message)
        last, cursor = await asyncio.to_thread(tail, self._files.output(question.source), lines, question.after)
        return LogsAnswer(lines=tuple(last), cursor=cursor)


class Questions:
    """``settings``: the agent's as they are now."""

    def __init__(
        self, node: Node, supervisor: Supervisor, lines: AgentLines, settings: Callable[[], NodeAgentSettings]
    ) -> None:
        self._node = node
        self._supervisor = supervisor
        self._settings = settings
        self.answers: dict[Any, Callable[[Any], Awaitable[Any]]] = {
            AskLogs: Logs(node.files, lines).answer,
            AskFabricMap: self.fabric_map,
            AskDoctor: self.doctor,
            AskHeaders: self.headers,
        }
        """Type of a question to what answers it."""

    async def fabric_map(self, question: AskFabricMap) -> FabricMap:
        """The InfiniBand fabric seen through a port. Raises Refused when it has no such port or cannot be scanned."""
        hardware = self._node.hardware
        nics = [port.nic for port in hardware.ports if port.link_layer == "InfiniBand"]
        if question.nic not in nics:
            there = ", ".join(nics) or "none"
            message = f"{question.nic!r} is not an InfiniBand adapter of this machine; name one of: {there}"
            raise Refused.one("adapter", message)
        try:
            return await asyncio.to_thread(hardware.map_fabric, question.nic, question.port)
        except ScanFailed as error:
            raise Refused.one("adapter", str(error)) from None

    async def doctor(self, question: AskDoctor) -> DoctorAnswer:
        """What is wrong with this machine."""
        hardware, supervisor = self._node.hardware, self._supervisor
        gpus = {gpu.uuid: gpu for gpu in hardware.gpus.gpus}
        names = tuple(sorted(self._node.engines))
        pids = supervisor.measured_pids()
        return examine(await asyncio.to_thread(gather, hardware.host, self._settings(), names, pids, gpus))

    async def headers(self, question: AskHeaders) -> HeadersAnswer:
        """What the headers of weights say. Raises Refused with what keeps them from being read here."""
        settings = self._settings()
        hub = Hub(settings.hf_endpoint, settings.hf_token_file)
        return await weight_headers.answer(hub, question)
