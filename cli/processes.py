"""Processes known by id and start time, so that a reused id is never taken for ours."""

from __future__ import annotations

import contextlib
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
    found = _process(process)
    return found is not None


def end(processes: Iterable[Seen], grace_s: float = 10.0) -> list[Seen]:
    """Ask every process and everything below it to end, kill what is left after the grace; those that had to be."""
    trees: list[psutil.Process] = []
    for one in processes:
        found = _process(one)
        if found is not None:
            with contextlib.suppress(psutil.Error):
                trees += [found, *found.children(recursive=True)]
    for process in trees:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(trees, timeout=grace_s)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=5.0)
    return [Seen(process.pid, 0.0) for process in left]


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
        found = psutil.Process(process.pid)
        # The boot time the system computes start times from may move by a clock tick between two reads.
        same = abs(found.create_time() - process.started) < 0.5
        return found if same and found.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None
