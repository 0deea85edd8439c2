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
from services.gateway.cluster.views import Keys, Routes, ServedModel
from services.gateway.core import faults
from services.gateway.core.faults import Fault
from services.gateway.core.http.addresses import Network
from services.gateway.core.http.cors import Origins
from services.gateway.core.http.openapi import document
from services.gateway.core.http.throttle import Throttle

from .exchange import Exchange
from .server import Channel, Receive, Scope, Send

log = logging.getLogger("llmgw.gateway")

WANTED_METHOD = b"access-control-request-method"
Handler = Callable[[Exchange], Awaitable[None]]


class Router:
    """The application: a table of paths, and one place where errors are written.

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
        """Have requests of a method and a path answered by ``handler``."""
        self._table.setdefault(path, {})[method] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send, channel: Channel) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the gateway speaks HTTP, not {scope['type']}")
        exchange = Exchange(scope, receive, send, channel)
        exchange.headers += self._origins.headers(exchange.header(b"origin"))
        self.in_flight += 1
        try:
            await self._handler(exchange)(exchange)
        except Fault as fault:
            metrics.ERRORS.labels(str(fault.status)).inc()
            await exchange.refuse(fault)
        except Abandoned:
            pass
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            metrics.ERRORS.labels("500").inc()
            if not exchange.answered:
                await exchange.refuse(faults.internal())
            # else: uvicorn closes the connection, which no client takes for a whole answer.
        finally:
            self.in_flight -= 1
            channel.on_disconnect = None  # channel and exchange hold each other

    def _handler(self, exchange: Exchange) -> Handler:
        methods = self._table.get(exchange.path)
        if methods is None:
            if exchange.path.startswith("/v1/models/"):
                methods = {"GET": self._model}
            else:
                raise faults.no_route(exchange.method, exchange.path)
        if (
            exchange.method == "OPTIONS"
            and self._origins.allow(exchange.header(b"origin"))
            and exchange.header(WANTED_METHOD)
        ):
            return self._preflight(methods)
        # RFC 9110, section 9.3.2: as GET, but for the body, which the server leaves out.
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            raise faults.wrong_method(exchange.method, exchange.path, methods)
        return handler

    def authenticate(self, exchange: Exchange, role: Role) -> KeyView:
        """The key of a request. Raises Fault.

        The same work is done for every key: a hash and a lookup. What differs is only the answer; where wrong keys
        come from is held against those alone.
        """
        if not exchange.authorization:
            raise faults.no_key()
        key = self._keys.get(hashlib.sha256(exchange.authorization).hexdigest())
        if key is None:
            raise self._wrong_key(exchange) if self._keys.live else faults.keys_unknown()
        if key.revoked or (key.expires_at is not None and key.expires_at <= datetime.now(UTC)):
            raise self._wrong_key(exchange)
        if role not in key.roles:
            raise faults.role_missing(role, key.roles)
        return key

    def _wrong_key(self, exchange: Exchange) -> Fault:
        wait_s = self._wrong.tried(exchange.origin(self._trusted_proxies), time.monotonic())
        return faults.wrong_key() if wait_s is None else faults.too_many_wrong_keys(wait_s)

    def _preflight(self, methods: Mapping[str, Handler]) -> Handler:
        async def handler(exchange: Exchange) -> None:
            wanted = exchange.header(b"access-control-request-headers")
            await exchange.answer(204, b"", self._origins.preflight(methods, wanted))

        return handler

    async def _health(self, exchange: Exchange) -> None:
        await exchange.answer(200, b'{"status":"ok"}')

    async def _ready(self, exchange: Exchange) -> None:
        reasons = self._not_ready()
        body = msgspec.json.encode({"status": "not ready" if reasons else "ready", "reasons": reasons})
        await exchange.answer(503 if reasons else 200, body)

    async def _openapi(self, exchange: Exchange) -> None:
        if self._document is None:
            self._document = document(version("llmgw"))
        await exchange.answer(200, self._document)

    async def _models(self, exchange: Exchange) -> None:
        key = self.authenticate(exchange, "client")
        served = sorted(self._routes.open_to(key), key=_usable_first)
        data = [_described(model) for model in served]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        # What Anthropic's clients read of a list stands beside what OpenAI's do.
        pages = {"has_more": False, "first_id": first, "last_id": last}
        await exchange.answer(200, msgspec.json.encode({"object": "list", "data": data, **pages}))

    async def _model(self, exchange: Exchange) -> None:
        key = self.authenticate(exchange, "client")
        name = unquote(exchange.path.removeprefix("/v1/models/"))
        served = self._routes.get(name, key)
        await exchange.answer(200, msgspec.json.encode(_described(served)))


def _usable_first(served: ServedModel) -> tuple[bool, bool, str]:
    """A program that takes the first model of the list gets one that answers chat."""
    return "chat" not in served.route.capabilities, not served.ready, served.route.model


def _described(served: ServedModel) -> dict[str, object]:
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
