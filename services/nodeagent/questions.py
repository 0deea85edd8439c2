"""Answers about output: of an engine, or of the agent itself."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from libs.events.commands import Problem
from libs.events.questions import AskLogs, LogsAnswer
from libs.events.refusal import Refused
from libs.runtime.logs import blank

from .adapters.disk.shard_files import ShardFiles
from .adapters.engine.output import tail

_MAX_LINES = 2000


class AgentLines(logging.Handler):
    """The agent's last log lines, numbered from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(blank(self.format(record)))
        self._count += 1

    def after(self, cursor: int, lines: int) -> LogsAnswer:
        new = min(self._count - cursor if cursor <= self._count else self._count, lines, len(self._lines))
        return LogsAnswer(lines=tuple(self._lines)[len(self._lines) - new :], cursor=self._count)


class LogLines:
    def __init__(self, files: ShardFiles, agent: AgentLines) -> None:
        self._files = files
        self._agent = agent

    async def answer(self, question: AskLogs) -> LogsAnswer:
        """The last lines after the asker's cursor. Raises Refused for a source that is not here."""
        lines = max(0, min(question.lines, _MAX_LINES))
        if question.source == "agent":
            return self._agent.after(question.after, lines)
        known = self._files.shards_with_output()
        if question.source not in known:
            there = ", ".join(["agent", *known])
            message = f"{question.source} has no output on {question.machine_id}; there is: {there}"
            raise Refused([Problem(path="source", message=message)])
        found, cursor = await asyncio.to_thread(tail, self._files.output(question.source), lines, question.after)
        return LogsAnswer(lines=tuple(found), cursor=cursor)
