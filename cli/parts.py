"""The processes of a cluster on one machine, and the files they need: identities, secrets, settings."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import yaml

from cli.failure import Failed
from cli.home import Home
from cli.ports import HOST
from cli.supervisor import Part
from libs.bus.identities import authorization, ensure_seed, grants, node_identity
from libs.runtime.secrets import fleet_secret, write_private
from libs.runtime.servers.nats import NatsFiles
from libs.runtime.servers.postgres import STOP_SIGNAL, PostgresFiles
from libs.runtime.settings import variable
from libs.simulated_machines import FleetMachine

NATS, POSTGRES, GATEWAY, AGENT = "nats", "postgres", "gateway", "nodeagent"
GATEWAY_PORT = variable(GATEWAY, "port")
CONTROL = ("scheduler", "accounting", "guard", "mirror")
PROBE_S = 2.0
GRACE_S = 45.0
"""Every part bounds its own stop below this."""
GATEWAY_WORKERS = 2
MAY_DIFFER = ("workers",)
"""Settings `up` only prefers: a variable may overrule them."""


def agent_name(machine: FleetMachine) -> str:
    """The part that runs the agent of a simulated machine."""
    return f"{AGENT}@{machine.id}"


def hardware_of(machine: FleetMachine) -> dict[str, Any]:
    """What the settings of its agent say of a simulated machine's hardware."""
    described: dict[str, Any] = msgspec.to_builtins(machine)
    return {field: value for field, value in described.items() if field not in ("id", "copies", "labels")}


def ports_needed(machines: Sequence[FleetMachine]) -> list[str]:
    """Names of the ports besides the gateway's own."""
    services = [*CONTROL, AGENT, *map(agent_name, machines), GATEWAY]
    return [NATS, POSTGRES, "mirror files", *(f"{name} status" for name in services)]


@dataclass(frozen=True)
class Layout:
    """One cluster: where it lies, its ports, its simulated machines, and how long which part is held down."""

    home: Home
    ports: Mapping[str, int]
    machines: Sequence[FleetMachine] = ()
    holds: Mapping[str, float] = field(default_factory=dict)

    @property
    def agents(self) -> list[str]:
        """The node agents: that of this machine, and those of simulated ones."""
        return [AGENT, *map(agent_name, self.machines)]

    @property
    def names(self) -> list[str]:
        """Every part."""
        return [NATS, POSTGRES, *CONTROL, *self.agents, GATEWAY]

    @property
    def base_url(self) -> str:
        """Where clients are answered."""
        return f"http://{HOST}:{self.ports[GATEWAY]}/v1"

    @cached_property
    def nats(self) -> NatsFiles:
        """nats-server, which lets in only those who have an identity here. Raises Failed."""
        machine_ids = [socket.gethostname(), *(machine.id for machine in self.machines)]
        allowed = grants(machine_ids)
        try:
            keys = {name: ensure_seed(self.home.identity(name)) for name in allowed}
        except ValueError as error:
            raise Failed(str(error)) from None
        return NatsFiles(directory=self.home.nats, port=self.ports[NATS], authorization=authorization(keys, allowed))

    @cached_property
    def postgres(self) -> PostgresFiles:
        """PostgreSQL, with a password that is made when there is none."""
        password = self.home.secret("postgres.password")
        if not password.exists():
            write_private(password, secrets.token_hex(16))
        return PostgresFiles(
            directory=self.home.postgres, port=self.ports[POSTGRES], password=password.read_text().strip()
        )

    def write_settings(self) -> None:
        """The settings file of every service, and the secrets they name. Raises BadSecret, OSError."""
        fleet_secret(self.home.secret("fleet.secret"))
        write_private(self.home.secret("postgres.dsn"), self.postgres.dsn())
        for name, values in self.settings().items():
            write_private(self.home.settings(name), yaml.safe_dump(values, sort_keys=False))

    def settings(self) -> dict[str, dict[str, Any]]:
        """Part to its settings."""
        fleet = f"file:{self.home.secret('fleet.secret')}"
        values = {
            "scheduler": self._common("scheduler") | {"fleet_secret": fleet},
            "accounting": self._common("accounting") | {"postgres_dsn_file": str(self.home.secret("postgres.dsn"))},
            "guard": self._common("guard"),
            "mirror": self._common("mirror") | {"host": HOST, "port": self.ports["mirror files"]},
            GATEWAY: self._common(GATEWAY)
            | {"host": HOST, "port": self.ports[GATEWAY], "workers": GATEWAY_WORKERS, "fleet_secret": fleet},
            AGENT: self._common(AGENT, node_identity(socket.gethostname()))
            | {"machine_id": socket.gethostname(), "address": HOST, "fleet": None},
        }
        for machine in self.machines:
            name = agent_name(machine)
            values[name] = self._common(name, node_identity(machine.id)) | {
                "machine_id": machine.id,
                "address": HOST,
                "labels": machine.labels,
                "simulated": hardware_of(machine),
            }
        return values

    def overruled(self, environ: Mapping[str, str]) -> list[str]:
        """Variables that would overrule what the parts are told, though the other parts count on that."""
        told = {
            variable(name.partition("@")[0], field)
            for name, values in self.settings().items()
            for field in values
            if field not in MAY_DIFFER
        }
        return sorted(told & environ.keys())

    def _common(self, name: str, identity: str = "") -> dict[str, Any]:
        return {
            "nats_url": self.nats.url,
            "credentials": str(self.home.identity(identity or name)),
            "data_dir": str(self.home.data(name)),
            "status_host": HOST,
            "status_port": self.ports[f"{name} status"],
            "instance": f"{name}-1" if name in (*CONTROL, GATEWAY) else name,
        }

    def nats_part(self) -> Part:
        """nats-server as a part."""
        return self._part(NATS, self.nats.command(), _tcp(self.nats.answers, "does not answer yet"))

    def postgres_part(self) -> Part:
        """PostgreSQL as a part."""
        ready = _tcp(self.postgres.answers, "does not accept sessions yet")
        return self._part(POSTGRES, self.postgres.command(), ready, STOP_SIGNAL)

    def service_parts(self) -> list[Part]:
        """The six services and the agents of simulated machines; the gateway last."""
        return [self._service(name) for name in (*CONTROL, *self.agents, GATEWAY)]

    def _service(self, name: str) -> Part:
        service = name.partition("@")[0]
        # A gateway is not ready before an engine serves; that it answers is enough to begin with.
        probe = f"{self.ports[GATEWAY]}/health" if name == GATEWAY else f"{self.ports[f'{name} status']}/ready"
        return self._part(name, self.run_command(service, name), answers(f"http://{HOST}:{probe}"))

    def run_command(self, service: str, name: str) -> list[str]:
        """The command that runs a service with the settings of a part."""
        return [sys.executable, "-m", "cli.main", "run", service, "--settings", str(self.home.settings(name))]

    def _part(
        self,
        name: str,
        command: Sequence[str],
        ready: Callable[[], Awaitable[list[str]]],
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> Part:
        return Part(
            name=name,
            command=command,
            log=self.home.log(name),
            ready=ready,
            stop_signal=stop_signal,
            grace_s=GRACE_S,
            hold_s=self.holds.get(name, 0.0),
        )


def _tcp(answers: Callable[[], bool], otherwise: str) -> Callable[[], Awaitable[list[str]]]:
    async def ready() -> list[str]:
        return [] if await asyncio.to_thread(answers) else [otherwise]

    return ready


def answers(url: str) -> Callable[[], Awaitable[list[str]]]:
    """Ask a service; what it says it waits for."""

    def ask() -> list[str]:
        try:
            with urllib.request.urlopen(url, timeout=PROBE_S):
                return []
        except urllib.error.HTTPError as error:
            try:
                return [str(reason) for reason in json.load(error)["reasons"]]
            except (ValueError, KeyError, TypeError):
                return [f"it answers HTTP {error.code}"]
        except OSError:
            return ["it does not answer yet"]

    async def ready() -> list[str]:
        return await asyncio.to_thread(ask)

    return ready
