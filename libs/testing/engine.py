"""A simulated engine as a process of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from libs.runtime.servers.ports import free_port

from .server import ServerProcess


class SimEngine(ServerProcess):
    """``python -m libs.testing.sim_engine`` on a free port. ``options`` are further command line options.

    ``key``: the API key it asks for; None: none.
    """

    name = "sim-engine"

    def __init__(
        self, directory: Path, *, model: str = "sim", key: str | None = None, options: tuple[str, ...] = ()
    ) -> None:
        super().__init__(directory)
        self.port = free_port()
        self.model, self.key, self.options = model, key, options

    @property
    def url(self) -> str:
        """Base URL without ``/v1``."""
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        return

    def command(self) -> list[str]:
        program = [sys.executable, "-m", "libs.testing.sim_engine", "--port", str(self.port), "--model", self.model]
        return [*program, *self.options]

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "LLMGW_ENGINE_KEY"}
        return kept | ({"LLMGW_ENGINE_KEY": self.key} if self.key else {})

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=0.5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def requests(self) -> dict[str, dict[str, Any]]:
        """What it did for each request, by request id (``x-request-id``): ``generated``, ``state``, ``prompt`` …

        Blocks for a millisecond. The last attempt wins where an id came twice.
        """
        with urllib.request.urlopen(f"{self.url}/sim/requests", timeout=5) as answer:
            return {each["id"]: each for each in json.load(answer)["requests"]}

    def behave(self, *, times: int | None = None, **behaviour: Any) -> None:
        """Answer the next ``times`` requests (None: all from now on) like that; see Behaviour."""
        body = json.dumps({"behaviour": behaviour, "times": times}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/sim/behaviour", body), timeout=5):
            return

    def freeze(self) -> None:
        """Stop the whole process from running, keeping its connections (SIGSTOP)."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo ``freeze``."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self, deadline_s: float = 10.0) -> None:
        if self.process is not None and self.process.poll() is None:
            self.thaw()
        super().stop(deadline_s)

    def ended(self, deadline_s: float = 10.0) -> int:
        """Wait for it to end by itself; its exit status."""
        assert self.process is not None
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the engine still runs after {deadline_s:g} s") from None
