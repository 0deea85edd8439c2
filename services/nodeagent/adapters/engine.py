"""What the agent asks of a running engine."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.readings import MetricNames, Readings, read
from . import http
from .http import Unreachable

_NOT_YET = frozenset({"loading", "loading model", "starting", "initializing", "warming_up", "error", "unhealthy"})
"""Words in a health body's ``status`` that mean not ready, whatever the HTTP status says."""

_FIRST_TOKEN_S = 120.0
"""A first token may wait for kernels to be compiled."""


class EngineClient:
    """One engine, at ``url`` (without ``/v1``)."""

    def __init__(self, url: str, key: str | None, metrics: MetricNames) -> None:
        self.url = url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._metrics = metrics

    async def healthy(self) -> bool:
        """Whether its health page says that it is ready."""
        try:
            answer = await http.request("GET", f"{self.url}/health", headers=self._headers, timeout_s=2)
        except Unreachable:
            return False
        if answer.status != 200:
            return False
        try:
            said: Any = msgspec.json.decode(answer.body[:65536])
        except msgspec.DecodeError:
            return True
        status = said.get("status") if isinstance(said, dict) else None
        return not (isinstance(status, str) and status.lower() in _NOT_YET)

    async def generates(self, served_name: str) -> str | None:
        """Let it generate one token. None when it did, else a sentence. Raises Unreachable."""
        asked: dict[str, Any] = {"model": served_name, "max_tokens": 1, "temperature": 0, "stream": False}
        answer = await self._ask("completions", asked | {"prompt": "1"})
        if answer.status in (404, 405):
            answer = await self._ask("chat/completions", asked | {"messages": [{"role": "user", "content": "1"}]})
        if answer.status != 200:
            return f"its first token failed: it answered HTTP {answer.status}"
        try:
            said: Any = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            return "its first token failed: its answer is not JSON"
        if not isinstance(said, dict) or not said.get("choices"):
            return "its first token failed: its answer has no choices"
        return None

    async def _ask(self, what: str, body: dict[str, Any]) -> http.Response:
        return await http.request(
            "POST",
            f"{self.url}/v1/{what}",
            headers=self._headers,
            body=msgspec.json.encode(body),
            timeout_s=_FIRST_TOKEN_S,
        )

    async def readings(self) -> Readings | None:
        """Its figures; None when it does not tell."""
        try:
            answer = await http.request("GET", f"{self.url}/metrics", headers=self._headers, timeout_s=1.5)
        except Unreachable:
            return None
        return read(answer.body.decode(errors="replace"), self._metrics) if answer.status == 200 else None
