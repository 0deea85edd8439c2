"""Where facts about a machine come from: the kernel's files, programs that are run, and NVIDIA's library.

Everything the agent and its doctor know of the hardware is asked here, so that a recorded or an invented machine
can stand in for the one below.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any, Protocol

import msgspec

_MAX_BYTES = 8 * 1024 * 1024

_MAX_LINES = 1000
"""Of the kernel's log at once; the rest is read the next time."""


class Ran(msgspec.Struct, frozen=True):
    """What a program did."""

    code: int
    out: str
    err: str = ""


class NotThere(Exception):
    """There is no such program (or library); the sentence says which."""


class TookTooLong(Exception):
    """A program did not end in time and was killed."""


class HostAccess(Protocol):
    """What can be asked of a machine: a real, a recorded or an invented one."""

    def nvml(self) -> Any:
        """A module like ``pynvml``. Raises NotThere."""

    def arch(self) -> str:
        """``x86_64``, ``aarch64``."""

    def text(self, path: str) -> str | None:
        """The content of a file below ``/``, stripped; None when it cannot be read."""

    def names(self, path: str) -> list[str]:
        """The sorted entries of a folder; empty when there is none."""

    def target(self, path: str) -> str | None:
        """What a path comes to once its links are followed; None when it does not exist."""

    def run(self, *command: str, timeout_s: float = 10.0) -> Ran:
        """Run a program to its end. Raises NotThere, TookTooLong."""

    def kernel_lines(self) -> list[str]:
        """What the kernel logged since this was asked last; the first time what it logs from then on."""


class ThisMachine:
    """The machine the process runs on."""

    def __init__(self) -> None:
        self._kernel_log: int | None = None

    def nvml(self) -> Any:
        try:
            import pynvml
        except ImportError:
            raise NotThere("the Python package nvidia-ml-py is not installed") from None
        return pynvml

    def arch(self) -> str:
        return platform.machine()

    def text(self, path: str) -> str | None:
        try:
            with Path(path).open("rb") as opened:
                return opened.read(_MAX_BYTES).decode(errors="replace").strip()
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def target(self, path: str) -> str | None:
        return os.path.realpath(path) if os.path.exists(path) else None

    def run(self, *command: str, timeout_s: float = 10.0) -> Ran:
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                env={"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), "LC_ALL": "C"},
                check=False,
            )
        except FileNotFoundError:
            raise NotThere(f"{command[0]} is not installed") from None
        except OSError as error:
            raise NotThere(f"{command[0]} cannot be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise TookTooLong(f"{' '.join(command)} did not end within {timeout_s:g} s") from None
        return Ran(ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace"))

    def kernel_lines(self) -> list[str]:
        if self._kernel_log is None:
            try:
                self._kernel_log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._kernel_log, 0, os.SEEK_END)
            except OSError:
                self._kernel_log = -1  # not root, or a container: what cannot be read is not measured
        lines: list[str] = []
        while self._kernel_log >= 0 and len(lines) < _MAX_LINES:
            try:
                record = os.read(self._kernel_log, 8192)
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next read goes on after them
            except OSError:
                break
            lines.append(record.partition(b";")[2].decode(errors="replace").rstrip("\n"))
        return lines
