"""The state directory of one cluster on this machine: where everything lies, and what was remembered."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Literal

import msgspec

from cli.failure import Failed
from cli.processes import Seen, alive
from libs.runtime.folder_identity import folder_id
from libs.runtime.secrets import write_private
from libs.runtime.settings import default_state_dir

Phase = Literal["starting", "ready", "failed", "stopping", "stopped"]


class Endpoint(msgspec.Struct, frozen=True):
    """``endpoint.json``: how to reach a cluster that answers. Holds keys: mode 0600."""

    base_url: str
    client_key: str
    admin_key: str
    nats_url: str
    postgres_dsn: str


class PartSeen(msgspec.Struct, frozen=True):
    """A part of a running cluster."""

    process: Seen
    restarts: int = 0


class Record(msgspec.Struct):
    """``up.json``: what the next ``up`` or ``down`` must know."""

    phase: Phase = "stopped"
    reason: str = ""
    """What it waits for, or why it failed."""
    up: Seen | None = None
    ports: dict[str, int] = {}
    """Part to port; kept from one start to the next."""
    parts: dict[str, PartSeen] = {}
    fleet: str = ""
    """The fleet file with machines that was last given."""
    agents: tuple[str, ...] = ()
    """Machine ids of the node agents: their engines must be stopped too."""
    root: str = ""
    """The directory it was written in."""
    root_id: str = ""
    """Which directory that was (``device:inode``): in a copy of it nothing is ours but the ports."""
    copied_from: str = ""
    """The directory whose copy this is, until something is started here."""


def default() -> Path:
    """``/var/lib/llmgw`` for root under systemd, else below the user's state directory."""
    if os.geteuid() == 0 and "INVOCATION_ID" in os.environ and Path("/run/systemd/system").exists():
        return Path("/var/lib/llmgw")
    return default_state_dir()


class Home:
    """One state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def make(self) -> None:
        """Create the directories. Raises Failed."""
        try:
            # PostgreSQL may run as another user and must pass; everything secret below is closed by itself.
            self.root.mkdir(parents=True, exist_ok=True)
            for name in ("identities", "secrets", "settings", "logs", "data"):
                (self.root / name).mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise Failed(
                f"the state directory {self.root} cannot be made ({error.strerror}): use --state-dir"
            ) from None

    @property
    def endpoint_file(self) -> Path:
        """How to reach the cluster; there while it answers."""
        return self.root / "endpoint.json"

    @property
    def record_file(self) -> Path:
        """What the next ``up`` or ``down`` must know."""
        return self.root / "up.json"

    @property
    def nats(self) -> Path:
        """Folder of nats-server's streams and configuration."""
        return self.root / "nats"

    @property
    def postgres(self) -> Path:
        """Folder of PostgreSQL's data."""
        return self.root / "postgres"

    def identity(self, name: str) -> Path:
        """File with the nkey seed of a bus identity."""
        return self.root / "identities" / f"{name}.nk"

    def secret(self, name: str) -> Path:
        """File with a secret."""
        return self.root / "secrets" / name

    def settings(self, part: str) -> Path:
        """Settings file of a part."""
        return self.root / "settings" / f"{part}.yaml"

    def log(self, part: str) -> Path:
        """File a part writes its output to."""
        return self.root / "logs" / f"{part}.log"

    def data(self, part: str) -> Path:
        """Folder of a service, for its ``data_dir``."""
        return self.root / "data" / part

    def record(self) -> Record:
        """What was remembered; an empty record when there is none. Raises Failed.

        In a copy of a state directory the processes remembered are those of the original: they are left out.
        """
        try:
            record = msgspec.json.decode(self.record_file.read_bytes(), type=Record)
            if record.root_id in ("", folder_id(self.root)):
                return record
            return Record(ports=record.ports, fleet=record.fleet, copied_from=record.root)
        except FileNotFoundError:
            return Record()
        except (OSError, msgspec.DecodeError) as error:
            raise Failed(f"{self.record_file} cannot be read ({error}): remove it if no llmgw runs there") from None

    def remember(self, record: Record) -> None:
        """Write the record, and which directory it is of. Raises OSError."""
        record.root, record.root_id = str(self.root), folder_id(self.root)
        write_private(self.record_file, msgspec.json.format(msgspec.json.encode(record)).decode() + "\n")

    def endpoint(self) -> Endpoint:
        """How to reach the cluster. Raises Failed."""
        copied_from = self.record().copied_from
        if copied_from:
            raise Failed(
                f"{self.root} is a copy of {copied_from} and nothing was started in it: start it with `llmgw up`, or "
                f"give --state-dir {copied_from}"
            )
        try:
            return msgspec.json.decode(self.endpoint_file.read_bytes(), type=Endpoint)
        except FileNotFoundError:
            raise Failed(
                f"no cluster answers in {self.root}: start one there with `llmgw up`, name another --state-dir, "
                "or give --nats and --credentials"
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise Failed(f"{self.endpoint_file} cannot be read: {error}") from None

    def publish(self, endpoint: Endpoint) -> None:
        """Tell everybody who may read this directory that the cluster answers."""
        write_private(self.endpoint_file, msgspec.json.format(msgspec.json.encode(endpoint)).decode() + "\n")

    def nats_url(self) -> str:
        """The bus of the cluster, also of one that is still starting. Raises Failed."""
        record = self.record()
        if not self.endpoint_file.exists() and record.up is not None and alive(record.up) and "nats" in record.ports:
            return f"nats://127.0.0.1:{record.ports['nats']}"
        return self.endpoint().nats_url

    def lock(self) -> IO[str]:
        """Held by the one ``up`` of this directory for as long as it lives. Raises Failed."""
        handle = (self.root / "up.lock").open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            up = self.record().up
            who = f" (pid {up.pid})" if up else ""
            raise Failed(
                f"llmgw is up already in {self.root}{who}: stop it with `llmgw down --state-dir {self.root}`, "
                "or give this one another --state-dir"
            ) from None
        return handle
