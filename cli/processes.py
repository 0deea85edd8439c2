"""Processes known by id and start time, so that a reused id is never taken for ours."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

import msgspec
import psutil


class Seen(msgspec.Struct, frozen=True):
    """A process that was started."""

    pid: int
    started: float
    """Seconds since the epoch, as the system tells it."""


def seen(pid: int) -> Seen | None:
    """The process that has this id now."""
    try:
        return Seen(pid, psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def alive(process: Seen) -> bool:
    """Whether that process runs: a reused id is not taken for it."""
    process_there = _process(process)
    return process_there is not None


def end(processes: Iterable[Seen], grace_s: float = 20.0) -> None:
    """Ask these processes to end; after the grace kill those that did not, with their process groups.

    What they started is theirs to end: an agent's engines live on, in groups of their own.
    """
    running = [process for process in map(_process, processes) if process is not None]
    for process in running:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(running, timeout=grace_s)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
    psutil.wait_procs(left, timeout=5.0)


def wait_gone(process: Seen, deadline_s: float) -> bool:
    """Whether it ended in time."""
    end_at = time.monotonic() + deadline_s
    while alive(process):
        if time.monotonic() > end_at:
            return False
        time.sleep(0.05)
    return True


def listener(port: int) -> str | None:
    """Who listens on a TCP port of this machine, as words for a person; None when that cannot be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and getattr(connection.laddr, "port", 0) == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return None


def _process(process: Seen) -> psutil.Process | None:
    try:
        candidate = psutil.Process(process.pid)
        # The boot time the system computes start times from may move by a clock tick between two reads.
        same = abs(candidate.create_time() - process.started) < 0.5
        return candidate if same and candidate.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None
