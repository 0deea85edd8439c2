"""CPU time of processes and what they started, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Stat:
    """The figures of ``/proc/PID/stat`` that are needed here (proc(5))."""

    def __init__(self, pid: int) -> None:
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text[text.rindex(")") + 2 :].split()
        self.parent = int(fields[1])
        utime, stime, cutime, cstime = map(int, fields[11:15])
        # With the children that ended and were waited for.
        self.cpu_s = (utime + stime + cutime + cstime) * TICK_S


def family(roots: Iterable[int]) -> set[int]:
    """These processes and all their descendants that live."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(Stat(int(name)).parent, []).append(int(name))
            except OSError:
                continue
    members: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in members:
            members.add(pid)
            todo += children.get(pid, [])
    return members


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds (user and system) these processes have used so far."""
    total = 0.0
    for pid in pids:
        try:
            total += Stat(pid).cpu_s
        except OSError:
            continue
    return total


def machine_cpu_s() -> float:
    """CPU seconds all processes of the machine have used since it started."""
    user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) * TICK_S
