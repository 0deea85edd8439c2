"""Starting, dying and stopping: what `up` promises of the processes it runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from libs.runtime.servers.ports import free_port

from .cluster import FLEET, Cluster, still_there

SIM = ("--port", "0", "--no-model", "--fleet", str(FLEET))


def wait_for(condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_after_a_killed_up_the_next_one_goes_on_and_ctrl_c_leaves_nothing(
    new_cluster: Callable[[], Cluster],
) -> None:
    cluster = new_cluster()
    first = cluster.up_in_foreground(*SIM)
    cluster.until_served()
    engines = cluster.engine_pids()
    assert len(engines) == 2
    left = cluster.processes()

    first.kill()
    first.wait()
    assert set(still_there(left)) >= engines

    second = cluster.up_in_foreground(*SIM)

    assert cluster.engine_pids() == engines
    assert "an earlier run was killed and left " in cluster.shown()
    assert set(still_there(left)) == engines

    everything = cluster.processes()
    ports = cluster.ports()
    assert all(listens(port) for port in ports.values())
    second.send_signal(signal.SIGINT)

    assert second.wait(60) == 0
    assert still_there(everything) == {}
    assert [name for name, port in ports.items() if listens(port)] == []
    assert not (cluster.state_dir / "endpoint.json").exists()


def test_a_part_that_dies_is_started_again(cluster: Cluster) -> None:
    before = cluster.restarts()["guard"]
    pid = cluster.kill("guard")

    wait_for(lambda: cluster.pids().get("guard", pid) != pid)

    wait_for(lambda: "guard: guard-1 leads" in cluster.text("status"))
    assert cluster.restarts()["guard"] == before + 1


def test_a_cluster_is_up_though_the_machines_of_its_model_are_gone(new_cluster: Callable[[], Cluster]) -> None:
    cluster = new_cluster()
    cluster.up(*SIM)
    cluster.text("down")

    done = cluster.run("up", "--port", "0", "--detach", timeout_s=120)

    assert done.returncode == 0, done.stderr
    first, *buts = done.stdout.splitlines()
    assert first.startswith("llmgw is up: http://127.0.0.1:")
    assert any(
        re.match(r"but sim-chat is not served: unplaced \(.+\): see `llmgw explain sim-chat`", but) for but in buts
    )
    assert f"--fleet {FLEET}" in buts[-1]
    cluster.text("down")

    done = cluster.run("up", "--port", "0", "--no-model", "--detach", timeout_s=60)

    assert done.returncode == 0
    assert "waiting for the first answer" not in done.stderr
    assert f"--fleet {FLEET}" in done.stdout


def test_machines_without_a_model_are_waited_for_by_nobody(new_cluster: Callable[[], Cluster]) -> None:
    cluster = new_cluster()
    fleet = FLEET.parent / "fleets" / "single-gpu.yaml"

    done = cluster.run("up", "--port", "0", "--no-model", "--fleet", str(fleet), "--detach")

    assert done.returncode == 0
    assert "waiting for the first answer" not in done.stderr
    assert "but " not in done.stdout


def test_one_directory_has_one_cluster(cluster: Cluster) -> None:
    for how in ((), ("--detach",)):
        said = cluster.refused("up", "--port", "0", *how)

        assert f"llmgw is up already in {cluster.state_dir} (pid {cluster.up_pid()})" in said


def test_why_up_in_the_background_ended_is_what_it_said(new_cluster: Callable[[], Cluster]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = new_cluster().refused("up", "--detach", "--port", str(port))

    assert said.startswith(f"llmgw: port {port} is taken")


def test_the_gateways_port_may_come_in_its_variable(
    new_cluster: Callable[[], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port("127.0.0.1")
    monkeypatch.setenv("LLMGW_GATEWAY_PORT", str(port))
    monkeypatch.setenv("PGSSLMODE", "require")  # of another database: nor does this part the services
    cluster = new_cluster()

    cluster.up("--no-model")

    assert cluster.base_url == f"http://127.0.0.1:{port}/v1"
    assert listens(port)
    cluster.text("down")
    cluster.up("--no-model", "--port", "0")  # what is said at the command line overrules it
    assert listens(cluster.ports()["gateway"])


def test_a_variable_that_would_part_the_services_is_refused_at_once(
    new_cluster: Callable[[], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_GATEWAY_WORKERS", "1")
    monkeypatch.setenv("LLMGW_GATEWAY_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("LLMGW_MIRROR_DATA_DIR", "/elsewhere")
    cluster = new_cluster()

    for how in ((), ("--detach",)):
        assert cluster.refused("up", "--port", "0", "--no-model", *how) == (
            "llmgw: `up` decides itself about LLMGW_GATEWAY_NATS_URL, LLMGW_MIRROR_DATA_DIR: unset them\n"
        )


def test_a_port_that_is_taken_is_told_with_who_has_it(cluster: Cluster, new_cluster: Callable[[], Cluster]) -> None:
    port = cluster.ports()["gateway"]

    said = new_cluster().refused("up", "--port", str(port))

    assert said.startswith(f"llmgw: port {port} is taken by ")
    assert "--port N" in said


def test_down_after_a_killed_up_stops_what_was_left(new_cluster: Callable[[], Cluster]) -> None:
    cluster = new_cluster()
    cluster.up(*SIM)
    everything = cluster.processes()
    assert psutil.Process(cluster.up_pid()) in everything

    os.kill(cluster.up_pid(), signal.SIGKILL)
    said = cluster.text("down")

    assert said == f"stopped what was left of the cluster in {cluster.state_dir}\n"
    wait_for(lambda: still_there(everything) == {})


def test_down_goes_on_when_up_dies_while_it_stops(new_cluster: Callable[[], Cluster]) -> None:
    cluster = new_cluster()
    cluster.up(*SIM)
    everything, up = cluster.processes(), cluster.up_pid()
    os.kill(up, signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        down = threads.submit(cluster.text, "down")
        wait_for(lambda: asked_to_end(up))
        os.kill(up, signal.SIGKILL)
        said = down.result()

    assert said == f"stopped what was left of the cluster in {cluster.state_dir}\n"
    wait_for(lambda: still_there(everything) == {})


def asked_to_end(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = next(line for line in status if line.startswith("ShdPnd"))
    return bool(int(pending.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def test_a_held_part_is_told_by_its_name(new_cluster: Callable[[], Cluster]) -> None:
    done = new_cluster().run("up", "--port", "0", "--hold", "nast=3")

    assert done.returncode == 2
    assert "--hold nast: parts are nats, postgres, scheduler" in done.stderr
