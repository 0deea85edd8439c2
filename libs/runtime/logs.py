"""Logs: one JSON object a line for machines, short lines for a person at a terminal. Secrets are blanked in both."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from . import traces
from .terminal_text import in_json, visible

Format = Literal["auto", "json", "console"]

# Client and engine keys, bearer tokens, nkey seeds, passwords in URLs.
SECRET = re.compile(
    r"(sk-llmgw-[\w-]{4})[\w-]{20,}|(ek-)[\w-]{30,}|((?i:bearer)\s+)[\w.~+/=-]{8,}|\b(S[UOANC])[A-Z2-7]{54,56}\b"
    r"|(://[^/\s:@]*:)[^/\s@]+(?=@)"
)
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def blank(text: str) -> str:
    """``text`` with everything that looks like a secret replaced by ``***``."""
    return SECRET.sub(lambda match: next((part for part in match.groups() if part), "") + "***", text)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


class JsonLines(logging.Formatter):
    """``{"time", "level", "service", "instance", "logger", "message", …extra, "trace_id"?, "error"?}``: ``time`` in UTC
    to the millisecond, ``error`` a traceback."""

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._who = {"service": service, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), **self._who}
        line |= {"logger": record.name, "message": record.getMessage(), **_extra(record)}
        trace_id = traces.trace_id()
        if trace_id is not None:
            line["trace_id"] = trace_id
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return in_json(blank(json.dumps(line, ensure_ascii=False, default=str)))


class ConsoleLines(logging.Formatter):
    """``12:30:01 scheduler  message key=value``, in local time; the level is shown from warning on."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        extra = "".join(f" {name}={value}" for name, value in _extra(record).items())
        text = f"{time} {self._service}  {level}{record.getMessage()}{extra}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return visible(blank(text))


def configure(
    service: str, instance: str, level: str = "info", form: Format = "auto", stream: TextIO | None = None
) -> None:
    """Send all logging of this process to ``stream`` (standard error). ``auto``: console lines on a terminal."""
    stream = stream or sys.stderr
    console = form == "console" or (form == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(ConsoleLines(service) if console else JsonLines(service, instance))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Their informational lines say what we say in our own words, or are one a request.
    for talkative in ("uvicorn", "uvicorn.error", "asyncio", "httpx"):
        logging.getLogger(talkative).setLevel(max(logging.WARNING, root.level))
