"""A service process from start to stop, as a supervisor sees it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from libs.bus import Bus
from libs.runtime.cannot_start import CannotStart
from libs.runtime.secrets import BadSecret
from libs.runtime.servers.ports import free_port
from libs.runtime.status import PortTaken
from libs.testing import eventually
from libs.testing.nats import NatsServer
from services.nodeagent.adapters.disk.lock import FolderInUse

PROGRAM = textwrap.dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    from libs.runtime import run
    from libs.runtime.cannot_start import CannotStart
    from libs.runtime.settings import CommonSettings

    class Bakery:
        def __init__(self, bus): self.bus, self.reasons = bus, ["the oven is cold"]
        async def start(self):
            asyncio.get_running_loop().call_later(0.3, self.reasons.clear)
            if os.environ.get("BREAK"): asyncio.get_running_loop().call_later(0.5, self.bus.fail, "a broken bus")
            if os.environ.get("FAIL"): raise RuntimeError("no flour")
            if os.environ.get("LOCKED"): raise CannotStart("the bakery is locked: bring the key")
        async def stop(self): await asyncio.sleep(float(os.environ.get("STOP_S", "0")))
        def not_ready(self): return self.reasons

    settings = CommonSettings(nats_url=sys.argv[1], status_port=int(sys.argv[2]), data_dir=Path("."),
                              instance="bakery-1", stop_timeout_s=0.5)
    sys.exit(run.serve("bakery", settings, lambda settings, bus: Bakery(bus), identity="operator"))
    """
)

Start = Callable[..., Awaitable["Running"]]


class Running:
    def __init__(self, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def messages(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.log.read_text().splitlines() if line.startswith("{")]

    async def logged(self, part: str) -> None:
        await eventually(lambda: any(part in message for message in self.messages()), what=f"{part!r} in the log")

    async def get(self, path: str) -> tuple[int, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), json.loads(body)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 10)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    running: list[Running] = []

    async def begin(url: str, **environment: str) -> Running:
        port, log = free_port(), tmp_path / "log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, url, str(port), stderr=file, env={**os.environ, **environment}
            )
        running.append(Running(process, port, log))
        return running[-1]

    yield begin
    for each in running:
        if each.process.returncode is None:
            each.process.kill()
        await each.process.wait()


async def test_from_waiting_for_the_bus_to_an_orderly_stop(
    start: Start, nats_server: NatsServer, tmp_path: Path
) -> None:
    nats_server.kill()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        process = await start(nats_server.url, NOTIFY_SOCKET=str(tmp_path / "notify"))
        await eventually(lambda: process.get("/health"))
        status, answer = await process.get("/ready")
        assert status == 503
        assert answer["reasons"][0].startswith("waiting for the bus at nats://127.0.0.1")
        nats_server.start()
        # No topology yet: only `llmgw bus init` makes it.
        await eventually(lambda: _waits_for_streams(process))
        await _topology(nats_server)
        await process.logged("bakery is not ready: the oven is cold")
        await process.logged("bakery is ready")
        assert (await process.get("/ready"))[0] == 200
        process.process.send_signal(signal.SIGTERM)
        assert await process.ended() == 0
        messages = process.messages()
        told = "\n".join(_datagrams(systemd))
    for earlier, later in zip(
        ["bakery 0.1.0 starts", "bakery runs", "SIGTERM received", "bakery stops: not ready", "bakery stopped"],
        ["bakery runs", "SIGTERM received", "bakery stops: not ready", "bakery stopped", None],
        strict=True,
    ):
        assert _index(messages, earlier) < (_index(messages, later) if later else len(messages))
    assert (
        told.index("EXTEND_TIMEOUT_USEC")
        < told.index("READY=1")
        < told.index("STATUS=ready")
        < told.index("STOPPING=1")
    )


async def test_a_stop_that_hangs_is_cut_short(start: Start, nats_server: NatsServer) -> None:
    await _topology(nats_server)
    process = await start(nats_server.url, STOP_S="60")
    await process.logged("bakery is ready")
    process.process.send_signal(signal.SIGINT)
    assert await process.ended() == 1
    assert "finishing took longer than 0.5 s and was cut short" in process.messages()


async def test_a_second_signal_ends_at_once(start: Start, nats_server: NatsServer) -> None:
    await _topology(nats_server)
    process = await start(nats_server.url, STOP_S="60")
    await process.logged("bakery is ready")
    process.process.send_signal(signal.SIGINT)
    await process.logged("bakery stops")
    process.process.send_signal(signal.SIGINT)
    assert await process.ended() == 1
    assert "SIGINT again: ending at once" in process.messages()


async def test_a_broken_bus_ends_the_process_for_its_supervisor(start: Start, nats_server: NatsServer) -> None:
    await _topology(nats_server)
    process = await start(nats_server.url, BREAK="1")
    assert await process.ended() == 1
    assert "bakery must start again: a broken bus" in process.messages()


async def test_a_service_that_cannot_start(start: Start, nats_server: NatsServer) -> None:
    await _topology(nats_server)
    process = await start(nats_server.url, FAIL="1")
    assert await process.ended() == 1
    assert "bakery cannot start" in process.messages()
    assert "no flour" in process.log.read_text()


async def test_what_a_person_must_mend_before_a_start_is_told_without_a_traceback(
    start: Start, nats_server: NatsServer
) -> None:
    await _topology(nats_server)
    process = await start(nats_server.url, LOCKED="1")
    assert await process.ended() == 1
    assert "bakery cannot start: the bakery is locked: bring the key" in process.messages()
    assert "Traceback" not in process.log.read_text()


def test_secrets_ports_and_folders_are_a_persons_to_mend() -> None:
    for kind in (BadSecret, PortTaken, FolderInUse):
        assert issubclass(kind, CannotStart)


async def test_stopped_while_it_waits_for_the_bus(start: Start) -> None:
    process = await start(f"nats://127.0.0.1:{free_port()}")
    await eventually(lambda: process.get("/health"))
    process.process.send_signal(signal.SIGTERM)
    assert await process.ended() == 0


async def _waits_for_streams(process: Running) -> bool:
    reasons: list[str] = (await process.get("/ready"))[1]["reasons"]
    return "llmgw bus init" in reasons[0]


async def _topology(server: NatsServer) -> None:
    from libs.bus import BusSettings, connect, ensure

    bus: Bus = await connect(BusSettings(url=server.url))
    await ensure(bus)
    await bus.close()


def _index(messages: list[str], part: str) -> int:
    return next(index for index, message in enumerate(messages) if part in message)


def _datagrams(receiver: socket.socket) -> list[str]:
    received = []
    while True:
        try:
            received.append(receiver.recv(4096).decode())
        except BlockingIOError:
            return received
