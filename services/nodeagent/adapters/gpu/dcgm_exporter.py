"""Asks a dcgm-exporter on this machine, where there is one."""

from __future__ import annotations

import http.client
import time
import urllib.request

from libs.events.machine import ChipUse
from services.nodeagent.core.machine.dcgm import chip_use

_PATIENCE_S = 2.0
_LEFT_ALONE_S = 300.0
"""Most machines run none; one that did not answer is asked again after so long."""

_MAX_BYTES = 4 * 1024 * 1024


class Exporter:
    """``url`` None: there is none to ask."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._after = float("-inf")

    def read(self) -> dict[str, ChipUse]:
        """By GPU UUID. Blocks for two seconds at most."""
        if self._url is None or time.monotonic() < self._after:
            return {}
        try:
            with urllib.request.urlopen(self._url, timeout=_PATIENCE_S) as answer:
                page = answer.read(_MAX_BYTES).decode(errors="replace")
        except (OSError, ValueError, OverflowError, http.client.HTTPException):  # what answers there may be anything
            self._after = time.monotonic() + _LEFT_ALONE_S
            return {}
        return chip_use(page)
