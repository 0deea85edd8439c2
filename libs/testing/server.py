"""A server program as a child process of the test: start, stop, kill, restart."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from libs.runtime.servers.ports import NotReady, wait_until


class ServerProcess:
    """One server on a fixed port with a fixed store; what it keeps survives ``stop``, ``kill`` and ``restart``.

    The methods block until the server answers or is gone (tens of milliseconds). Call them through
    ``asyncio.to_thread`` where clients on the same event loop must go on meanwhile.
    """

    name = "server"
    stop_signal = signal.SIGTERM

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Write what the program needs before it starts; what it keeps stays. Called at every start."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Program and arguments that run it in the foreground."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it can be worked with; asked until it can."""
        raise NotImplementedError

    def environment(self) -> dict[str, str] | None:
        """Its environment; None: this process's."""
        return None

    @property
    def log_file(self) -> Path:
        """What it printed, of all its starts."""
        return self.directory / f"{self.name}.log"

    @property
    def running(self) -> bool:
        """Whether its process is there, be it frozen."""
        return self.process is not None and self.process.poll() is None

    def start(self, deadline_s: float = 30.0) -> None:
        """Start it and wait until it answers. Raises NotReady."""
        assert not self.running, f"{self.name} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
            )
        try:
            wait_until(self.answers, f"{self.name} ({self.log_file})", self.process.poll, deadline_s)
        except NotReady:
            self.kill()
            raise

    def stop(self, deadline_s: float = 10.0) -> None:
        """Stop it in order; kill it when it takes longer than ``deadline_s``. Nothing to do when it does not run."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process = None

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def back_up(self, to: Path) -> None:
        """Stop it, copy what it keeps, start it again. Raises NotReady."""
        self.stop()
        _copy(self.directory, to)
        self.start()

    def put_back(self, copy: Path) -> None:
        """Stop it, put a copy in the place of what it keeps, start it again. Raises NotReady."""
        self.stop()
        shutil.rmtree(self.directory)
        _copy(copy, self.directory)
        self.start()

    def wipe(self) -> None:
        """Stop it, remove what it keeps, start it again with nothing. Raises NotReady."""
        self.stop()
        shutil.rmtree(self.directory)
        self.start()

    def restart(self) -> None:
        """Stop in order and start on the same port and store. Raises NotReady."""
        self.stop()
        self.start()


def _copy(directory: Path, to: Path) -> None:
    """With owners: a server may run as another user."""
    subprocess.run(["cp", "-a", str(directory), str(to)], check=True)
