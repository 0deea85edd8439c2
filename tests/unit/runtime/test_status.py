from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.runtime.servers.ports import free_port
from libs.runtime.status import PortTaken, StatusServer
from libs.runtime.systemd import Notifier
from libs.testing import eventually

REASONS: list[str] = []


async def get(port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


@pytest.fixture
async def port() -> AsyncIterator[int]:
    number = free_port()
    server = StatusServer("bakery", "127.0.0.1", number, lambda: REASONS, pytest.fail)
    await server.start()
    await eventually(lambda: get(number, "/health"))
    yield number
    await server.stop()


async def test_alive_is_not_ready(port: int) -> None:
    REASONS[:] = ["keys have not caught up"]
    assert (await get(port, "/health"))[0] == 200
    status, body = await get(port, "/ready")
    assert status == 503
    assert json.loads(body)["reasons"] == ["keys have not caught up"]
    REASONS.clear()
    assert (await get(port, "/ready"))[0] == 200


async def test_metrics(port: int) -> None:
    status, body = await get(port, "/metrics")
    assert status == 200
    assert b"llmgw_loop_lag_seconds_bucket" in body


async def test_a_taken_port_is_told(port: int) -> None:
    with pytest.raises(PortTaken, match="set status_port to a free one"):
        await StatusServer("bakery", "127.0.0.1", port, list, pytest.fail).start()


async def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(2)
        notifier = Notifier(str(tmp_path / "notify"))
        notifier.ready("running")
        assert systemd.recv(1000) == b"READY=1\nSTATUS=running"
        notifier.stopping(3)
        assert systemd.recv(1000).startswith(b"STOPPING=1\n")
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        feeding = asyncio.create_task(notifier.feed_watchdog())
        for _ in range(2):
            assert await asyncio.to_thread(systemd.recv, 1000) == b"WATCHDOG=1"
        feeding.cancel()
    Notifier(str(tmp_path / "gone")).ready("nobody listens")
    await Notifier("").feed_watchdog()
