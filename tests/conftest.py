"""Fixtures shared by all tests: real servers, each test with streams and a database of its own."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import libs.bus
from libs.bus import Bus, BusSettings
from libs.bus.memory import MemoryCluster
from libs.testing.engine import SimEngine
from libs.testing.nats import NatsServer
from libs.testing.postgres import PostgresServer
from tests.proof import pytest_terminal_summary  # noqa: F401 - pytest finds its hooks here

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Tests that were started in the background ignore Ctrl-C, and every process they start would do so too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of this test's own (it starts in some 20 ms), without authorization."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def connect_as(nats_server: NatsServer) -> AsyncIterator[Callable[[str], Awaitable[Bus]]]:
    """``await connect_as("scheduler")``: another bus on this test's server, under that identity; topology in place."""
    connected: list[Bus] = []

    async def connect(identity: str) -> Bus:
        bus = await libs.bus.connect(BusSettings(url=nats_server.url, identity=identity))
        connected.append(bus)
        if len(connected) == 1:
            await libs.bus.ensure(bus)
        return bus

    yield connect
    for bus in connected:
        await bus.close()


@pytest.fixture
async def bus(connect_as: Callable[[str], Awaitable[Bus]]) -> Bus:
    """A bus on the real server, with its topology in place, as the operator."""
    return await connect_as("operator")


@pytest.fixture
def memory_cluster() -> MemoryCluster:
    """A bus in memory with the same behaviour: ``memory_cluster.bus("scheduler")`` for each identity."""
    return MemoryCluster()


@pytest.fixture
async def memory_bus(memory_cluster: MemoryCluster) -> AsyncIterator[Bus]:
    """A bus in memory, as the operator."""
    bus = memory_cluster.bus("operator")
    yield bus
    await bus.close()


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


@pytest.fixture
def sim_engine(tmp_path: Path) -> Iterator[SimEngine]:
    """A simulated engine serving the model ``sim`` at 500 tokens a second, without a key."""
    engine = SimEngine(tmp_path / "engine")
    engine.start()
    yield engine
    engine.stop()
