"""Clusters the end-to-end tests share: started once a session, left healthy by every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cluster import FLEET, Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two simulated machines that serve ``sim-chat`` with two replicas."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster") / "state")
    try:
        cluster.up("--port", "0", "--no-model", "--fleet", str(FLEET))
        cluster.until_served()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """What `llmgw up` gives anybody: a real small model on this machine."""
    cluster = Cluster(tmp_path_factory.mktemp("demo") / "state")
    try:
        cluster.up("--port", "0")
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[[], Cluster]]:
    """Clusters of this test's own, not started, stopped at its end."""
    made: list[Cluster] = []

    def make() -> Cluster:
        made.append(Cluster(tmp_path / f"state-{len(made)}"))
        return made[-1]

    yield make
    for cluster in made:
        cluster.down()
