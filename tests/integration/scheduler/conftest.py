"""A small cluster for stories: see cluster.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.bus import Bus
from libs.testing.nats import NatsServer

from .agent import scheduler
from .cluster import LENGTHS, Cluster, running


@pytest.fixture
def hastened(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes takes moments, in this process."""
    for name, value in LENGTHS.items():
        monkeypatch.setattr(name, value)


@pytest.fixture
async def unled(nats_server: NatsServer, bus: Bus, tmp_path: Path, hastened: None) -> AsyncIterator[Cluster]:
    """A cluster without machines and without a scheduler yet."""
    async with running(nats_server, bus, tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def cluster(unled: Cluster, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster without machines yet, led by a scheduler in this process."""
    async with scheduler(unled.server, tmp_path):
        yield unled
