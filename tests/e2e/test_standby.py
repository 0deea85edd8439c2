"""Two schedulers: one leads, the other takes over, and the one that slept finds that it was succeeded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .cluster import Cluster

TAKEN_OVER_S = 12.0


@pytest.fixture
def standby(cluster: Cluster, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A second scheduler on the cluster's bus."""
    settings = yaml.safe_load((cluster.state_dir / "settings" / "scheduler.yaml").read_text())
    settings |= {"instance": "scheduler-2", "data_dir": str(tmp_path / "data"), "status_port": 0}
    file = tmp_path / "scheduler.yaml"
    file.write_text(yaml.safe_dump(settings))
    with (tmp_path / "scheduler.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "run", "scheduler", "--settings", str(file)], stdout=log, stderr=log
        )
    yield process
    process.terminate()
    process.wait(30)


def until(cluster: Cluster, sentence: str, after: int, deadline_s: float) -> int:
    """Wait for an event that is told with this sentence; its sequence."""
    end = time.monotonic() + deadline_s
    while True:
        for line in cluster.text("event", "list", "--all").splitlines():
            number = line.split()[1]
            if number.startswith("#") and int(number[1:]) > after and sentence in line:
                return int(number[1:])
        assert time.monotonic() < end, f"{sentence!r} did not happen within {deadline_s:g} s"


def shown_until(cluster: Cluster, *parts: str, deadline_s: float = 30) -> None:
    """Wait until `llmgw status` shows these instances, wherever they run."""
    end = time.monotonic() + deadline_s
    while any(part not in (shown := cluster.text("status")) for part in parts):
        assert time.monotonic() < end, shown


@pytest.mark.timeout(300)
def test_a_standby_decides_while_the_leader_sleeps(cluster: Cluster, standby: subprocess.Popen[bytes]) -> None:
    position = cluster.json("event", "replay")["position"]
    shown_until(cluster, "scheduler scheduler-1: leads", "scheduler scheduler-2: stands by", "gateway gateway-")
    leader = cluster.pids()["scheduler"]
    os.kill(leader, signal.SIGSTOP)
    try:
        taken = until(cluster, "scheduler-2 leads scheduler now", position, TAKEN_OVER_S)
        cluster.text("model", "scale", "sim-chat", "3")
        until(cluster, "of sim-chat placed on", taken, 5)
        shown_until(cluster, "scheduler scheduler-2: leads", "scheduler scheduler-1: silent for ")
    finally:
        os.kill(leader, signal.SIGCONT)

    # The old leader is awake: what it decides now is refused, and it follows.
    cluster.text("model", "scale", "sim-chat", "2")
    cluster.until_served()
    assert cluster.json("event", "replay")["same"] is True

    standby.terminate()
    standby.wait(30)
    until(cluster, "scheduler-1 leads scheduler now", taken, TAKEN_OVER_S)
