"""A gateway in front of simulated engines, on a real bus. The test plays scheduler, accounting and guard."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httptools
import pytest

from libs.bus import Bus, Delivery
from libs.events.policy import PolicySpec
from libs.events.usage import RequestRecord, UsageBatch
from libs.events.views import Endpoint, KeyView, Route
from libs.runtime.servers.ports import free_port
from libs.testing import eventually
from libs.testing.engine import SimEngine
from libs.testing.nats import NatsServer
from libs.testing.server import ServerProcess
from services.gateway.app import Gateway, build
from services.gateway.settings import GatewaySettings

KEY = "sk-llmgw-client"
ADMIN = "sk-llmgw-admin"
AT = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """Everything around a gateway: views to write, the usage that comes out, engines."""

    def __init__(self, server: NatsServer, bus: Bus, directory: Path, stack: AsyncExitStack) -> None:
        self.server, self.bus, self.directory = server, bus, directory
        self._stack = stack
        self._position = 0
        self.batches: list[UsageBatch] = []

    @property
    def records(self) -> dict[str, RequestRecord]:
        """Usage on the stream by request id; a request twice is an error."""
        found: dict[str, RequestRecord] = {}
        for batch in self.batches:
            for record in batch.records:
                assert record.request_id not in found, f"{record.request_id} came twice"
                found[record.request_id] = record
        return found

    async def record(self, request_id: str) -> RequestRecord:
        return await eventually(lambda: self.records.get(request_id), what=f"a record of {request_id}")

    async def start(self) -> None:
        async def on_usage(delivery: Delivery) -> None:
            assert isinstance(delivery.message, UsageBatch)
            self.batches.append(delivery.message)

        await self.bus.follow("USAGE", ["llmgw.use.gateway.>"], on_usage)
        await self.key(KEY)
        await self.key(ADMIN, key_id="k-admin", roles=("client", "admin"))

    async def key(self, key: str, **fields: Any) -> None:
        self._position += 1
        view = {"key_id": "k-client", "project": "acme/lab/web", "position": self._position} | fields
        await self.bus.view("keys", KeyView).put(hashlib.sha256(key.encode()).hexdigest(), KeyView(**view))

    async def route(self, *engines: SimEngine | Endpoint, model: str = "sim", **fields: Any) -> None:
        self._position += 1
        endpoints = tuple(one if isinstance(one, Endpoint) else endpoint(one) for one in engines)
        values = {"context_length": 4096, "capabilities": ("chat", "completions"), "created_at": AT} | fields
        route = Route(model=model, endpoints=endpoints, position=self._position, **values)
        await self.bus.view("routes", Route).put(model, route)

    async def policy(self, spec: PolicySpec) -> None:
        await self.bus.view("policies", PolicySpec).put(spec.name, spec)

    def engine(self, name: str, **options: Any) -> SimEngine:
        engine = SimEngine(self.directory / name, **options)
        engine.start()
        self._stack.callback(engine.stop)
        return engine

    async def gateway(self, bus: Bus, instance: str = "gw-1", **fields: Any) -> Client:
        """One worker in this process."""
        values = {"data_dir": self.directory / instance, "instance": instance, "port": free_port()} | fields
        settings = GatewaySettings(**values)
        service: Gateway = build(settings, bus)
        await service.start()
        client = Client(settings.port, service)
        self._stack.push_async_callback(client.stop)
        await eventually(lambda: service.not_ready() == [])
        return client


def endpoint(engine: SimEngine, /, **fields: Any) -> Endpoint:
    """An engine as the scheduler tells of it."""
    values = {"machine_id": "here", "served_name": "sim", "parallel": 64} | fields
    return Endpoint(replica_id=f"r-{engine.port}", url=engine.url, **values)


class GatewayProcess(ServerProcess):
    """The parent with its workers, as ``llmgw run gateway`` runs it."""

    name = "gateway"

    def __init__(self, directory: Path, nats_url: str, **settings: Any) -> None:
        super().__init__(directory)
        self.port, self.status_port = free_port(), free_port()
        values = {"nats_url": nats_url, "data_dir": str(directory / "data"), "instance": "gw", "port": self.port}
        self._settings = values | {"status_port": self.status_port, "log_format": "json"} | settings

    def prepare(self) -> None:
        (self.directory / "settings.yaml").write_text(json.dumps(self._settings))

    def command(self) -> list[str]:
        file = str(self.directory / "settings.yaml")
        return [sys.executable, "-m", "cli.main", "run", "gateway", "--settings", file]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.status_port}/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [pid for pid in map(int, children) if b"services.gateway.process.worker" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes() if os.path.exists(f"/proc/{pid}") else b""


class Response:
    """One answer, parsed as it comes."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.done = False
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.done = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def events(self) -> list[Any]:
        """Data of the events; ``[DONE]`` as text."""
        data = [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n") if event]
        return [text.decode() if text == b"[DONE]" else json.loads(text) for text in data]

    @property
    def text(self) -> str:
        """What the model said in a streamed chat."""
        chunks = [event for event in self.events if event != "[DONE]" and "choices" in event]
        return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


CHAT = "/v1/chat/completions"


class Client:
    """Speaks HTTP/1.1 to a gateway, one connection a request, and sees every byte."""

    def __init__(self, port: int, service: Gateway | None = None) -> None:
        self.port, self.service = port, service
        self._stopped = service is None

    async def stop(self) -> None:
        """Stop the gateway, where it is one of this process."""
        if not self._stopped and self.service is not None:
            self._stopped = True
            await self.service.stop()

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = KEY,
        headers: tuple[str, ...] = (),
        until: Callable[[Response], bool] = lambda response: False,
    ) -> Response:
        """``until`` true: hang up there and then, without reading on."""
        import asyncio

        response = Response()
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "host: gateway", f"content-length: {len(data)}", *headers]
        lines += [f"authorization: Bearer {key}"] if key is not None else []
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode() + data)
            while not response.done and not until(response):
                received = await reader.read(65536)
                if not received:
                    break
                response.parser.feed_data(received)
        finally:
            writer.transport.abort()
        return response

    async def chat(self, text: str = "hello", **fields: Any) -> Response:
        """A chat; keywords of ``send`` are taken out, the rest goes into the body."""
        options = {name: fields.pop(name) for name in ("key", "headers", "until") if name in fields}
        body = {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 8} | fields
        return await self.send("POST", CHAT, body, **options)


@pytest.fixture
async def world(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World(nats_server, bus, tmp_path, stack)
        await world.start()
        yield world


@pytest.fixture
async def gateway(world: World, sim_engine: SimEngine, connect_as: Callable[[str], Awaitable[Bus]]) -> Client:
    """A gateway with one engine behind it, which serves ``sim``."""
    await world.route(sim_engine)
    return await world.gateway(await connect_as("gateway"))
