"""A process with the agents of a whole fleet of invented machines."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from libs.testing.nats import NatsServer


class FleetProcess:
    def __init__(self, server: NatsServer, directory: Path, fleet: str, sample_every_s: float = 2.0) -> None:
        directory.mkdir(parents=True)
        file, settings = directory / "fleet.yaml", directory / "nodeagent.yaml"
        file.write_text(fleet)
        settings.write_text(
            f"nats_url: {server.url}\ndata_dir: {directory / 'data'}\nfleet: {file}\nengines: [sim]\n"
            f"sample_every_s: {sample_every_s}\n"
        )
        self._out = (directory / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "run", "nodeagent", "--settings", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._out,
        )
        self._settings = settings

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Its agents say nothing any more. What they ran runs on."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Its engines too: an agent that ends leaves them running."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        subprocess.run(
            [sys.executable, "-m", "cli.main", "run", "nodeagent", "--settings", str(self._settings), "--stop-engines"],
            capture_output=True,
            check=False,
        )
        self._out.close()
