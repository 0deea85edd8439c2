"""What is said when a command does not get onto the bus: nobody there, or somebody who does not let it in."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import cluster
from cli.cluster import reached
from cli.failure import Failed
from libs.bus.identities import OPERATOR, authorization, ensure_seed, grants
from libs.runtime.servers.ports import free_port
from libs.testing.nats import NatsServer


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_S", 1.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    allowed = grants([])
    keys = {name: ensure_seed(tmp_path / f"{name}.nk") for name in allowed}
    server = NatsServer(tmp_path / "nats", authorization=authorization(keys, allowed))
    server.start()
    yield server
    server.stop()


async def said(url: str, credentials: Path | None) -> str:
    with pytest.raises(Failed) as caught:
        async with reached(url, credentials, OPERATOR):
            raise AssertionError("it was let in")
    return caught.value.message


async def test_where_nothing_listens_the_bus_cannot_be_reached() -> None:
    url = f"nats://127.0.0.1:{free_port('127.0.0.1')}"

    assert (await said(url, None)).startswith(f"the bus at {url} cannot be reached: ")


async def test_who_listens_and_says_nothing_is_no_bus() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"

        assert (await said(url, None)).startswith(f"the bus at {url} cannot be reached: ")


async def test_credentials_that_are_refused_are_named(server: NatsServer, tmp_path: Path) -> None:
    ensure_seed(tmp_path / "other.nk")

    for credentials in (None, tmp_path / "other.nk"):
        assert (await said(server.url, credentials)).startswith(f"the bus at {server.url} did not let operator in ")


async def test_that_one_server_of_several_is_away_does_not_hide_it(server: NatsServer) -> None:
    url = f"nats://127.0.0.1:{free_port('127.0.0.1')},{server.url}"

    assert "did not let operator in" in await said(url, None)
