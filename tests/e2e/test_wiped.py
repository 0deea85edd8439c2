"""The database or the bus of a whole cluster is wiped, or put back from a copy: what either still knows is used, and
what is gone is said."""

from __future__ import annotations

import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.testing import eventually

from .cluster import FLEET, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

UP = ("--port", "0", "--no-model", "--fleet", str(FLEET))
HOLD_S = 15
BODY = b'{"model":"sim-chat","messages":[{"role":"user","content":"hi"}],"max_tokens":4}'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "state")
    try:
        yield cluster
    finally:
        cluster.down()


def asks(cluster: Cluster, key: str) -> int:
    """The status of one request."""
    request = urllib.request.Request(f"{cluster.base_url}/chat/completions", BODY)
    request.add_header("authorization", f"Bearer {key}")
    request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def requests(cluster: Cluster) -> int:
    """Of the test's own keys: `up` asks something too, with another."""
    ours = set(OURS.values())
    return sum(row["requests"] for row in cluster.json("usage", "--by", "key") if row["name"] in ours)


OURS: dict[str, str] = {}
"""Key to its id."""


def key_for(cluster: Cluster, name: str) -> str:
    made = cluster.json("key", "create", "demo/demo/demo", "--name", name)
    OURS[made["key"]] = made["key_id"]
    return str(made["key"])


def copy(directory: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(directory), str(to)], check=True)


async def counted(cluster: Cluster, at_least: int) -> None:
    await eventually(lambda: requests(cluster) >= at_least, 30, every_s=0.5)


async def test_a_wiped_database_and_a_wiped_bus(cluster: Cluster) -> None:
    cluster.up(*UP)
    cluster.until_served()
    key = key_for(cluster, "ours")
    assert [asks(cluster, key) for _ in range(5)] == [200] * 5
    await counted(cluster, 5)

    cluster.down()
    shutil.rmtree(cluster.state_dir / "postgres")
    said = cluster.text("up", "--detach", *UP)
    assert "but the database was found empty" in said
    assert "the database was found empty" in cluster.text("status")
    await counted(cluster, 5)
    assert asks(cluster, key) == 200

    await counted(cluster, 6)
    cluster.down()
    shutil.rmtree(cluster.state_dir / "nats")
    said = cluster.text("up", "--detach", *UP)
    assert "but the bus was begun anew on" in said
    assert "put a backup of the bus back, or apply your files" in cluster.text("status")
    assert asks(cluster, key) == 401
    assert requests(cluster) >= 6, "the ledger stays"
    cluster.until_served()
    assert asks(cluster, cluster.client_key) == 200, "what `up` itself declares is there"


async def test_a_bus_put_back_from_a_copy_while_all_others_run(cluster: Cluster, tmp_path: Path) -> None:
    cluster.up(*UP, "--hold", f"nats={HOLD_S}")
    cluster.until_served()
    kept = key_for(cluster, "kept")
    answered = 0

    def serves(key: str) -> bool:
        nonlocal answered
        status = asks(cluster, key)
        answered += status == 200
        assert status in (200, 401), status
        return status == 200

    def counts(wanted: int) -> bool:
        found = requests(cluster)
        assert found == wanted, f"{found} of {wanted} requests"
        return True

    assert serves(kept)
    await counted(cluster, 1)
    cluster.kill("nats", signal.SIGSTOP)
    copy(cluster.state_dir / "nats", tmp_path / "copy")
    cluster.kill("nats", signal.SIGCONT)
    lost = key_for(cluster, "lost")
    await eventually(lambda: serves(lost), 10)
    before = {name: pid for name, pid in cluster.pids().items() if name != "nats"}

    pid = cluster.kill("nats")
    shutil.rmtree(cluster.state_dir / "nats")
    copy(tmp_path / "copy", cluster.state_dir / "nats")
    assert serves(lost), "the gateway knows what it knew"
    await eventually(lambda: cluster.pids().get("nats", pid) != pid, HOLD_S + 20, every_s=0.5)

    await eventually(lambda: not serves(lost), 30, every_s=0.5)
    assert serves(kept)
    # Of those that follow what was lost: the key was made by accounting, and heard by the guard.
    await eventually(lambda: cluster.text("status").count("EVENTS was put back from a copy") == 2, 30, every_s=0.5)
    new = key_for(cluster, "new")
    await eventually(lambda: serves(new), 10)
    # Also what the bus had taken and forgot: it is still in the gateway's spool.
    await eventually(lambda: counts(answered), 60, every_s=0.5)
    assert {name: pid for name, pid in cluster.pids().items() if name != "nats"} == before, "nobody had to be started"
    replayed = cluster.json("event", "replay")
    assert replayed["same"], replayed
