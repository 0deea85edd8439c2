"""Hitting a real cluster's processes: SIGKILL, and SIGSTOP for a while."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from tests.e2e.cluster import Cluster
from tests.e2e.engines import shards

from .story import Blow


def processes(cluster: Cluster, part: str) -> list[int]:
    """Ids of what a part is now; none when it does not run. Of PostgreSQL a frozen part is all of its processes."""
    try:
        name, _, index = part.rpartition(" ")
        if name == "engine":
            engines = sorted(shards(cluster).items())
            return [engines[int(index)][1]["process"]["pid"]] if int(index) < len(engines) else []
        if name == "gateway worker":
            workers = psutil.Process(cluster.pids()["gateway"]).children()
            return [workers[int(index)].pid] if int(index) < len(workers) else []
        pid = cluster.pids()[part]
        children = psutil.Process(pid).children(recursive=True) if part == "postgres" else []
        return [pid, *(child.pid for child in children)]
    except (KeyError, psutil.Error, OSError, ValueError):
        return []


class Blows:
    """Deals the blows of a story, and sees to it that nothing stays frozen."""

    def __init__(self, cluster: Cluster, blows: Sequence[Blow], say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._blows = blows
        self._say = say
        self._frozen: dict[int, float] = {}
        """Process to its start, so that a reused id is never thawed."""
        self.missed = 0
        """Blows at a part that did not run just then."""

    async def deal(self) -> None:
        """All of them, at their times."""
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for blow in self._blows:
                    await asyncio.sleep(max(0.0, began + blow.at_s - time.monotonic()))
                    pids = processes(self._cluster, blow.part)
                    self._say(f"{blow}" if pids else f"{blow}: it does not run")
                    self.missed += not pids
                    if blow.what == "freeze":
                        group.create_task(self._freeze(pids, blow.for_s))
                    elif pids:
                        with suppress(ProcessLookupError):
                            os.kill(pids[0], signal.SIGKILL)
        finally:
            self._thaw(list(self._frozen))

    async def _freeze(self, pids: Sequence[int], for_s: float) -> None:
        for pid in pids:
            with suppress(psutil.Error, ProcessLookupError):
                self._frozen[pid] = psutil.Process(pid).create_time()
                os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(for_s)
        self._thaw(pids)

    def _thaw(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(psutil.Error, ProcessLookupError, KeyError):
                if psutil.Process(pid).create_time() == self._frozen.pop(pid):
                    os.kill(pid, signal.SIGCONT)
