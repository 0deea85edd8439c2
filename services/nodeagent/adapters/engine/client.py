"""What the agent asks of a running engine."""

from __future__ import annotations

from typing import Any

import msgspec

from services.nodeagent.core.engines import Engine
from services.nodeagent.core.shard.engine_metrics import Readings

from . import http
from .http import Unreachable

_NOT_YET = frozenset({"loading", "loading model", "starting", "initializing", "warming_up", "error", "unhealthy"})
"""Words in a health body's ``status`` that mean not ready, whatever the HTTP status says."""

_FIRST_TOKEN_S = 120.0
"""A first token may wait for kernels to be compiled."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: tuple[_Model, ...] = ()


class EngineClient:
    """One engine, at ``url`` (without ``/v1``)."""

    def __init__(self, url: str, key: str | None, engine: Engine) -> None:
        self.url = url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._engine = engine

    @property
    def health_path(self) -> str:
        """The path of its health page."""
        return self._engine.health_path

    async def healthy(self) -> bool:
        """Whether its health page says that it is ready."""
        try:
            answer = await http.request(
                "GET", f"{self.url}{self._engine.health_path}", headers=self._headers, timeout_s=2
            )
        except Unreachable:
            return False
        if answer.status != 200:
            return False
        try:
            body: Any = msgspec.json.decode(answer.body[:65536])
        except msgspec.DecodeError:
            return True
        status = body.get("status") if isinstance(body, dict) else None
        return not (isinstance(status, str) and status.lower() in _NOT_YET)

    async def generates(self, served_name: str) -> str | None:
        """Let it generate one token, or embed one word. None when it did, else a sentence. Raises Unreachable."""
        if not self._engine.generates:
            return None
        request: dict[str, Any] = {"model": served_name}
        completion = request | {"max_tokens": 1, "temperature": 0, "stream": False}
        trouble = ""
        for what, body, field in (
            ("completions", completion | {"prompt": "1"}, "choices"),
            ("chat/completions", completion | {"messages": [{"role": "user", "content": "1"}]}, "choices"),
            ("embeddings", request | {"input": "1"}, "data"),
        ):
            answer = await self._ask(what, body)
            trouble = trouble or f"its first token failed: it answered HTTP {answer.status}"
            if answer.status in (404, 405) or (answer.status in (400, 501) and what != "embeddings"):
                continue  # a model for something else
            if answer.status != 200:
                return f"its first token failed: it answered HTTP {answer.status}"
            try:
                decoded: Any = msgspec.json.decode(answer.body)
            except msgspec.DecodeError:
                return "its first token failed: its answer is not JSON"
            if not isinstance(decoded, dict) or not decoded.get(field):
                return f"its first token failed: its answer has no {field}"
            return None
        return trouble

    async def listed(self) -> set[str]:
        """The names it answers to. Raises Unreachable."""
        answer = await http.request("GET", f"{self.url}/v1/models", headers=self._headers, timeout_s=5)
        try:
            return {model.id for model in msgspec.json.decode(answer.body, type=_Models).data}
        except msgspec.DecodeError:
            return set()

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
        path = self._engine.metrics_path
        if path is None:
            return None
        try:
            answer = await http.request("GET", f"{self.url}{path}", headers=self._headers, timeout_s=1.5)
        except Unreachable:
            return None
        return self._engine.readings(answer.body.decode(errors="replace")) if answer.status == 200 else None
