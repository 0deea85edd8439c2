"""A compose file read as Docker reads it, and its services run as plain processes with the same commands,
environments and mounts, on other ports.

There is no container engine in this: what is tested is that everything the file says fits the code.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from libs.runtime.servers.ports import free_port
from libs.testing.postgres import PostgresServer

DIRECTORY = Path(__file__).parents[2] / "deploy" / "compose"
BIN = Path(sys.executable).parent
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?:(?P<kind>:-|:\?)(?P<rest>[^}]*))?\}")


def interpolated(text: str, environment: Mapping[str, str]) -> str:
    """``${NAME}``, ``${NAME:-default}`` and ``${NAME:?why}`` filled in."""

    def fill(match: re.Match[str]) -> str:
        value = environment.get(match["name"], "")
        if not value and match["kind"] == ":?":
            raise ValueError(f"{match['name']}: {match['rest']}")
        return value or (match["rest"] if match["kind"] == ":-" else "")

    return VARIABLE.sub(fill, text)


def load(environment: Mapping[str, str]) -> dict[str, Any]:
    """The compose file with its variables filled in."""
    found: dict[str, Any] = yaml.safe_load(interpolated((DIRECTORY / "compose.yaml").read_text(), environment))
    return found


class Stack:
    """The services of a compose file as processes below one directory."""

    def __init__(self, directory: Path, compose: dict[str, Any], environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._services: dict[str, dict[str, Any]] = compose["services"]
        self._postgres = PostgresServer(directory / "postgres")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Every port of a container becomes a free one here; hosts of containers become this machine.
        self._ports: dict[tuple[str, str], int] = {}
        self._password = environment["POSTGRES_PASSWORD"]

    def port(self, service: str, port: str) -> int:
        """The port here that stands for a port of a container."""
        if (service, port) not in self._ports:
            self._ports[service, port] = free_port()
        return self._ports[service, port]

    def up(self) -> None:
        """Start everything that has no profile, in the order its dependencies ask for."""
        for name, service in self._services.items():
            if "profiles" not in service:
                self._reach(name)

    def _reach(self, name: str) -> None:
        if name in self._processes:
            return
        service = self._services[name]
        for other, how in service.get("depends_on", {}).items():
            self._reach(other)
            if how["condition"] == "service_completed_successfully":
                assert self._processes[other].wait(60) == 0, self.log(other)
            elif other != "postgres":
                self._until_healthy(other)
        if name == "postgres":
            self._postgres.start()
            self._processes[name] = self._postgres.process  # type: ignore[assignment]
            return
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self.command(name), env=self.environment(name), stdout=log, stderr=log, start_new_session=True
            )

    def run(self, name: str, *arguments: str) -> str:
        """``docker compose run --rm NAME …``: what it prints."""
        done = subprocess.run(
            [*self.command(name), *arguments], env=self.environment(name), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command(self, name: str) -> list[str]:
        """A service's entry point and command, as they are on this machine."""
        service = self._services[name]
        entry = service.get("entrypoint", ["llmgw"])
        return [str(BIN / entry[0]), *entry[1:], *(self._here(name, one) for one in service.get("command", []))]

    def environment(self, name: str) -> dict[str, str]:
        """A service's environment, and nothing of ours but where programs are."""
        own = {key: self._here(name, str(value)) for key, value in self._services[name].get("environment", {}).items()}
        for key, value in own.items():
            if key.endswith("_PORT"):
                own[key] = str(self.port(name, value))
            if key.endswith("_ADDRESS"):  # the container's own host name
                own[key] = "127.0.0.1"
        return {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(self.root(name))} | own

    def root(self, name: str) -> Path:
        """What stands for a container's file system: links to its mounts."""
        root = self._directory / "roots" / name
        if not root.exists():
            root.mkdir(parents=True)
            for mount in self._services[name].get("volumes", []):
                source, inside = mount.split(":")[:2]
                target = root / inside.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                if source.startswith("."):
                    text = (DIRECTORY / source).read_text()
                    target.write_text(self._nats_ports(text) if name == "nats" else text)
                else:
                    volume = self._directory / "volumes" / source
                    volume.mkdir(parents=True, exist_ok=True)
                    target.symlink_to(volume)
        return root

    def _nats_ports(self, text: str) -> str:
        text = re.sub(r"(?m)^port: (\d+)$", lambda found: f"port: {self.port('nats', found[1])}", text)
        text = re.sub(r"(?m)^http: (\d+)$", lambda found: f"http: {self.port('nats', found[1])}", text)
        return text.replace("/var/lib/llmgw", str(self._directory / "volumes" / "nats"))

    def _here(self, name: str, text: str) -> str:
        text = text.replace(
            f"llmgw:{self._password}@postgres:5432",
            f"llmgw:{self._postgres.files.password}@127.0.0.1:{self._postgres.files.port}",
        )
        text = re.sub(
            r"//([a-z]+):(\d+)",
            lambda found: f"//127.0.0.1:{self.port(found[1], found[2])}" if found[1] in self._services else found[0],
            text,
        )
        for mount in self._services[name].get("volumes", []):
            inside = mount.split(":")[1]
            text = re.sub(rf"(?<![\w/.]){re.escape(inside)}(?=/|$)", str(self.root(name) / inside.lstrip("/")), text)
        # `prepare` is given the directory above its mounts.
        return str(self.root(name) / "identities") if text == "/identities" else text

    def _until_healthy(self, name: str, deadline_s: float = 60.0) -> None:
        kind, *test = self._services[name]["healthcheck"]["test"]
        assert kind == "CMD", f"{name}: only CMD can be run here"
        check = [re.sub(r"127\.0\.0\.1:(\d+)", lambda f: f"127.0.0.1:{self.port(name, f[1])}", one) for one in test]
        end = time.monotonic() + deadline_s
        while True:
            done = subprocess.run(check, env=self.environment(name), capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            process = self._processes[name]
            assert process.poll() is None, f"{name} ended with {process.returncode}: {self.log(name)}"
            assert time.monotonic() < end, f"{name} is not healthy: {done.stderr[-500:]} {self.log(name)}"
            time.sleep(0.1)

    def until_healthy(self) -> None:
        """Wait for every service that says how to look at its health: ``docker compose up --wait``."""
        for name, service in self._services.items():
            if "healthcheck" in service and name != "postgres":
                self._until_healthy(name)
        for name, service in self._services.items():
            if service.get("restart") == "on-failure":
                assert self._processes[name].wait(60) == 0, self.log(name)

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")[-3000:]

    def down(self) -> None:
        """Stop everything; a container takes all its processes along, here the node's engines are stopped by name."""
        for name, process in reversed(self._processes.items()):
            if name != "postgres" and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(45)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if name == "node":
                subprocess.run([*self.command(name), "--stop-engines"], env=self.environment(name), check=True)
        self._postgres.stop()
