"""A real PostgreSQL for tests."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from libs.runtime.servers.ports import free_port
from libs.runtime.servers.postgres import STOP_SIGNAL, PostgresFiles, programs

from .server import ServerProcess


class PostgresServer(ServerProcess):
    """PostgreSQL on a free loopback port, its files in ``directory``. ``dsn`` is the database ``llmgw``.

    Without ``fsync`` it loses data when the machine fails, not when the process does; a test has no machine to lose.
    (Without ``synchronous_commit`` it would lose commits of its last moments to a kill as well.)
    """

    name = "postgres"
    stop_signal = STOP_SIGNAL

    def __init__(self, directory: Path, *, port: int | None = None) -> None:
        super().__init__(directory)
        options = {"fsync": "off", "full_page_writes": "off"}
        self.files = PostgresFiles(directory=directory, port=port or free_port(), password="test", options=options)
        self._numbers = itertools.count(1)

    @property
    def dsn(self) -> str:
        """The address of its first database, password included."""
        return self.files.dsn()

    def prepare(self) -> None:
        self.files.prepare()

    def command(self) -> list[str]:
        return self.files.command()

    def answers(self) -> bool:
        return self.files.answers()

    def create_database(self) -> str:
        """A new, empty database; its dsn. Raises NoBinary."""
        name = f"test_{next(self._numbers)}"
        # STRATEGY file_copy without fsync takes a third of the time of the default, which writes all of it to the log.
        statement = f"CREATE DATABASE {name} STRATEGY file_copy"
        self._psql(statement)
        return self.files.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Drop a database of ``create_database``, also while sessions are open in it. Raises NoBinary."""
        self._psql(f"DROP DATABASE IF EXISTS {urlsplit(dsn).path.strip('/')} WITH (FORCE)")

    def _psql(self, statement: str) -> None:
        psql = [str(programs() / "psql"), self.dsn, "-v", "ON_ERROR_STOP=1", "-qc", statement]
        done = subprocess.run(psql, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
