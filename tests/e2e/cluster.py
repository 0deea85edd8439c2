"""A whole cluster, started and used as a person would: by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

LLMGW = (sys.executable, "-m", "cli.main")
FLEET = Path(__file__).parents[2] / "examples" / "fleet.yaml"
START_S = 90.0


class Cluster:
    """A state directory and what runs from it."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._started: list[subprocess.Popen[bytes]] = []

    # the command line

    def run(self, *arguments: str, stdin: str = "", timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """``llmgw`` with these arguments against this cluster."""
        return subprocess.run(
            [*LLMGW, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, "LLMGW_STATE_DIR": str(self.state_dir)},
            check=False,
        )

    def text(self, *arguments: str, stdin: str = "") -> str:
        """What a command prints; it must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"llmgw {' '.join(arguments)}: {done.stderr or done.stdout}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """What a command prints with ``--json``; it must succeed."""
        return json.loads(self.text(*arguments, "--json"))

    def refused(self, *arguments: str, stdin: str = "") -> str:
        """What a command that cannot be done says; never a traceback."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 1, f"llmgw {' '.join(arguments)} ended with {done.returncode}: {done.stdout}"
        assert "Traceback" not in done.stderr
        return done.stderr

    # its life

    def up(self, *arguments: str) -> None:
        """Start it in the background; returns when it answers."""
        done = self.run("up", "--detach", *arguments, timeout_s=START_S)
        assert done.returncode == 0, f"{done.stderr}\n{self.log('up')[-4000:]}"

    def up_in_foreground(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start it in the foreground; returns when it answers."""
        with (self.state_dir.parent / f"{self.state_dir.name}.out").open("ab") as out:
            process = subprocess.Popen(
                [*LLMGW, "up", "--state-dir", str(self.state_dir), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._started.append(process)
        end = time.monotonic() + START_S
        while self.record().get("phase") != "ready" or self.up_pid() != process.pid:
            assert process.poll() is None, f"up ended with {process.returncode}: {self.shown()[-4000:]}"
            assert time.monotonic() < end, f"up is not ready: {self.shown()[-4000:]}"
            time.sleep(0.05)
        return process

    def until_served(self, deadline_s: float = 30.0) -> None:
        """Wait until every model has all its replicas."""
        end = time.monotonic() + deadline_s
        models = self.json("model", "list")
        while any(one["ready"] < one["wanted"] for one in models):
            assert time.monotonic() < end, models
            models = self.json("model", "list")

    def down(self) -> None:
        """Stop it, whatever state it is in."""
        self.run("down", timeout_s=120)
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def shown(self) -> str:
        """What the foreground showed."""
        return (self.state_dir.parent / f"{self.state_dir.name}.out").read_text(errors="replace")

    def log(self, part: str) -> str:
        file = self.state_dir / "logs" / f"{part}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    # what it is

    def endpoint(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.state_dir / "endpoint.json").read_text())
        return found

    @property
    def base_url(self) -> str:
        return self.endpoint()["base_url"]

    @property
    def client_key(self) -> str:
        return self.endpoint()["client_key"]

    @property
    def admin_key(self) -> str:
        return self.endpoint()["admin_key"]

    @property
    def nats_url(self) -> str:
        return self.endpoint()["nats_url"]

    @property
    def postgres_dsn(self) -> str:
        return self.endpoint()["postgres_dsn"]

    def record(self) -> dict[str, Any]:
        file = self.state_dir / "up.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def up_pid(self) -> int:
        return int(self.record()["up"]["pid"])

    def pids(self) -> dict[str, int]:
        """Part (``scheduler``, ``nodeagent@sim-1``, ``nats`` …) to the id of its process."""
        return {name: part["process"]["pid"] for name, part in self.record()["parts"].items()}

    def restarts(self) -> dict[str, int]:
        return {name: part["restarts"] for name, part in self.record()["parts"].items()}

    def ports(self) -> dict[str, int]:
        found: dict[str, int] = self.record()["ports"]
        return found

    def engine_pids(self) -> set[int]:
        """Engines of every node, as the agents' facts on the log name them."""
        found: dict[str, int] = {}
        for told in self.text("event", "list", "--all", "--json").splitlines():
            event = json.loads(told)
            if event["stream"] != "EVENTS" or not event["tag"].startswith("shard."):
                continue
            message = event["message"]
            if "pid" in message:
                found[message["shard_id"]] = message["pid"]
            elif event["tag"] in ("shard.failed.v1", "shard.stopped.v1"):
                found.pop(message["shard_id"], None)
        return set(found.values())

    def kill(self, part: str, number: int = signal.SIGKILL) -> int:
        """Signal a part; the id of the process it was."""
        pid = self.pids()[part]
        os.kill(pid, number)
        return pid

    def processes(self) -> list[psutil.Process]:
        """Every process of it there is now: ``up``, its parts, what they started, and engines."""
        roots = [self.up_pid(), *self.pids().values(), *self.engine_pids()]
        found: dict[int, psutil.Process] = {}
        for pid in roots:
            if psutil.pid_exists(pid):
                process = psutil.Process(pid)
                found |= {one.pid: one for one in (process, *process.children(recursive=True))}
        return list(found.values())


def still_there(processes: Iterable[psutil.Process]) -> Mapping[int, str]:
    """Those that run, by id, with their command."""
    return {one.pid: " ".join(one.cmdline()) for one in processes if one.is_running() and one.status() != "zombie"}
