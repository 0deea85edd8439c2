"""Fixtures shared by all tests: real servers, each test with streams and a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.bus import Bus, BusSettings, connect, ensure
from libs.bus.memory import MemoryCluster
from libs.testing.nats import NatsServer
from libs.testing.postgres import PostgresServer


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of this test's own (it starts in some 20 ms), without authorization."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    """A bus on the real server, with its topology in place, as the operator."""
    connected = await connect(BusSettings(url=nats_server.url, identity="operator"))
    await ensure(connected)
    yield connected
    await connected.close()


@pytest.fixture
async def memory_bus() -> AsyncIterator[Bus]:
    """The bus in memory, with the same behaviour."""
    connected = MemoryCluster().bus()
    yield connected
    await connected.close()


@pytest.fixture(scope="session")
def _shared_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def postgres_dsn(_shared_postgres: PostgresServer) -> Iterator[str]:
    """A new, empty database on a server the tests share."""
    dsn = _shared_postgres.create_database()
    yield dsn
    _shared_postgres.drop_database(dsn)


@pytest.fixture
def postgres_server(tmp_path: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL of this test's own, to be stopped and killed (takes about a second)."""
    server = PostgresServer(tmp_path / "postgres")
    server.start()
    yield server
    server.stop()
