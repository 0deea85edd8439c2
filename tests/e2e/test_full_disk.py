"""A cluster whose disk is full says so, can be stopped, and goes on once there is room."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import FLEET, Cluster, still_there


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a file system of its own needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    file = folder / "filling"
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(65536))
        except OSError:
            return file


def until(cluster: Cluster, words: str, deadline_s: float) -> str:
    end = time.monotonic() + deadline_s
    while words not in (said := cluster.run("status").stdout):
        assert time.monotonic() < end, said
        time.sleep(0.5)
    return said


@pytest.mark.slow
def test_a_full_disk_is_said_and_left_and_stops_nobody_from_stopping(small_disk: Path) -> None:
    cluster = Cluster(small_disk / "state")
    try:
        # A new cluster takes of the disk what there is: nothing is set aside that is not there.
        cluster.up("--port", "0", "--no-model", "--fleet", str(FLEET))
        cluster.until_served()
        assert "nats: answers" in cluster.text("status")
        file = fill(small_disk)
        assert "nats: its disk is full" in until(cluster, "its disk is full", 30)
        until(cluster, "cannot decide", 60)

        file.unlink()
        assert "scheduler-1 leads" in until(cluster, "scheduler-1 leads", 60)
        assert cluster.restarts()["nats"] == 1
        cluster.text("node", "cordon", "sim-1")

        fill(small_disk)
        processes = cluster.processes()
        down = cluster.run("down", timeout_s=120)
        assert down.returncode == 0, down.stderr
        assert "Traceback" not in down.stderr
        assert "should not have happened" not in down.stderr
        assert still_there(processes) == {}
    finally:
        cluster.down()
