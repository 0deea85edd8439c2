"""A real nats-server with JetStream for tests."""

from __future__ import annotations

from pathlib import Path

from libs.runtime.servers.nats import NatsFiles
from libs.runtime.servers.ports import free_port

from .server import ServerProcess


class NatsServer(ServerProcess):
    """nats-server with the product's configuration, on a free port, its streams in ``directory``.

    ``authorization`` is the text of an authorization block; it may be changed before the next start.
    """

    name = "nats-server"

    def __init__(self, directory: Path, *, authorization: str = "", port: int | None = None) -> None:
        super().__init__(directory)
        self.port = port or free_port()
        self.authorization = authorization

    @property
    def files(self) -> NatsFiles:
        """What it is started from now; another object after each change."""
        return NatsFiles(directory=self.directory, port=self.port, authorization=self.authorization)

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self.files.url

    def prepare(self) -> None:
        self.files.prepare()

    def command(self) -> list[str]:
        return self.files.command()

    def answers(self) -> bool:
        return self.files.answers()
