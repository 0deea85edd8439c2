"""The application behind the port: who is asking, and which part of the gateway answers."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from urllib.parse import unquote

import msgspec

from libs.events.tenancy import Role
from libs.events.views import KeyView
from services.gateway import metrics
from services.gateway.adapters.upstream import Abandoned
from services.gateway.cluster.views import Keys, Routes, Served
from services.gateway.core import errors
from services.gateway.core.errors import Fault
from services.gateway.core.http.addresses import Network
from services.gateway.core.http.cors import Origins
from services.gateway.core.http.openapi import document
from services.gateway.core.http.throttle import Throttle

from .exchange import (
    Call,
    Receive,
    Scope,
    Send,
)

log = logging.getLogger("llmgw.gateway")

WANTED_METHOD = b"access-control-request-method"
Handler = Callable[[Call], Awaitable[None]]

INTERNAL = Fault(
    500,
    "internal_error",
    "The gateway failed on this request and wrote down why; tell your administrator the request id.",
    kind="server_error",
)


class Door:
    """A raw ASGI application: a table of paths, and one place where errors are written.

    ``not_ready`` gives the reasons why this gateway should get no traffic.
    """

    def __init__(
        self,
        keys: Keys,
        routes: Routes,
        not_ready: Callable[[], list[str]],
        unknown_keys_per_minute: int,
        trusted_proxies: tuple[Network, ...],
        origins: Origins,
    ) -> None:
        self._origins = origins
        self._wrong = Throttle(unknown_keys_per_minute)
        self._trusted_proxies = trusted_proxies
        self._keys = keys
        self._routes = routes
        self._not_ready = not_ready
        self._document: bytes | None = None
        self.in_flight = 0
        """Requests being answered."""
        self._table: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ready": {"GET": self._ready},
            "/v1/models": {"GET": self._models},
            "/api/openapi.json": {"GET": self._openapi},
        }

    def add(self, method: str, path: str, handler: Handler) -> None:
        self._table.setdefault(path, {})[method] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the gateway speaks HTTP, not {scope['type']}")
        call = Call(scope, receive, send)
        call.headers += self._origins.headers(call.header(b"origin"))
        self.in_flight += 1
        try:
            await self._handler(call)(call)
        except Fault as fault:
            metrics.ERRORS.labels(str(fault.status)).inc()
            await call.refuse(fault)
        except Abandoned:
            pass
        except Exception:
            log.exception("request %s failed", call.request_id)
            metrics.ERRORS.labels("500").inc()
            if not call.answered:
                await call.refuse(INTERNAL)
            # else: uvicorn closes the connection, which no client takes for a whole answer.
        finally:
            self.in_flight -= 1

    def _handler(self, call: Call) -> Handler:
        methods = self._table.get(call.path)
        if methods is None:
            if call.path.startswith("/v1/models/"):
                methods = {"GET": self._model}
            else:
                raise errors.no_route(call.method, call.path)
        if call.method == "OPTIONS" and self._origins.allow(call.header(b"origin")) and call.header(WANTED_METHOD):
            return self._preflight(methods)
        # RFC 9110, section 9.3.2: as GET, but for the body, which the server leaves out.
        handler = methods.get("GET" if call.method == "HEAD" else call.method)
        if handler is None:
            raise errors.wrong_method(call.method, call.path, methods)
        return handler

    def authenticate(self, call: Call, role: Role) -> KeyView:
        """The key of a request. Raises Fault.

        The same work is done for every key: a hash and a lookup. What differs is only the answer; where wrong keys
        come from is held against those alone.
        """
        if not call.authorization:
            raise errors.no_key()
        key = self._keys.get(hashlib.sha256(call.authorization).hexdigest())
        if key is None:
            raise self._wrong_key(call) if self._keys.live else errors.keys_unknown()
        if key.revoked or (key.expires_at is not None and key.expires_at <= datetime.now(UTC)):
            raise self._wrong_key(call)
        if role not in key.roles:
            raise errors.role_missing(role, key.roles)
        return key

    def _wrong_key(self, call: Call) -> Fault:
        wait_s = self._wrong.tried(call.origin(self._trusted_proxies), time.monotonic())
        return errors.wrong_key() if wait_s is None else errors.too_many_wrong_keys(wait_s)

    def _preflight(self, methods: Mapping[str, Handler]) -> Handler:
        async def handler(call: Call) -> None:
            wanted = call.header(b"access-control-request-headers")
            await call.answer(204, b"", self._origins.preflight(methods, wanted))

        return handler

    async def _health(self, call: Call) -> None:
        await call.answer(200, b'{"status":"ok"}')

    async def _ready(self, call: Call) -> None:
        reasons = self._not_ready()
        body = msgspec.json.encode({"status": "not ready" if reasons else "ready", "reasons": reasons})
        await call.answer(503 if reasons else 200, body)

    async def _openapi(self, call: Call) -> None:
        if self._document is None:
            self._document = document(version("llmgw"))
        await call.answer(200, self._document)

    async def _models(self, call: Call) -> None:
        key = self.authenticate(call, "client")
        served = sorted(visible(self._routes.models, key).values(), key=_first_the_usable)
        data = [_described(one) for one in served]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        # What Anthropic's clients read of a list stands beside what OpenAI's do.
        pages = {"has_more": False, "first_id": first, "last_id": last}
        await call.answer(200, msgspec.json.encode({"object": "list", "data": data, **pages}))

    async def _model(self, call: Call) -> None:
        key = self.authenticate(call, "client")
        name = unquote(call.path.removeprefix("/v1/models/"))
        served = open_to(self._routes, key, name)
        await call.answer(200, msgspec.json.encode(_described(served)))


def visible(models: Mapping[str, Served], key: KeyView) -> dict[str, Served]:
    """The models a key may use."""
    return {name: served for name, served in models.items() if may_use(key, served)}


def may_use(key: KeyView, served: Served) -> bool:
    return key.models is None or served.route.model in key.models


def open_to(routes: Routes, key: KeyView, name: str) -> Served:
    """The model called ``name``. Raises Fault naming those the key may use."""
    served = routes.find(name)
    if served is None or not may_use(key, served):
        raise errors.unknown_model(name, visible(routes.models, key))
    return served


def _first_the_usable(served: Served) -> tuple[bool, bool, str]:
    """A program that takes the first model of the list gets one that answers chat."""
    return "chat" not in served.route.capabilities, not served.ready, served.route.model


def _described(served: Served) -> dict[str, object]:
    route = served.route
    return {
        "id": route.model,
        "object": "model",
        "created": int(route.created_at.timestamp()),
        "owned_by": "llmgw",
        "context_length": route.context_length,
        "max_output_tokens": served.max_tokens,
        "capabilities": list(route.capabilities),
        "aliases": list(route.aliases),
        "ready": served.ready,
        "type": "model",
        "display_name": route.model,
        "created_at": route.created_at,
    }
