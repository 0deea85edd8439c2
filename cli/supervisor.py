"""Child processes kept running: started, watched, restarted when they die, stopped in order.

Children write to files, not pipes: when ``up`` itself is killed they go on, and the next ``up`` finds them by the
record of their process ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.console import readable
from cli.failure import Failed
from cli.processes import Seen, seen

LIVED_S = 30.0
"""A part that lived this long has recovered: its next death is again the first."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
LOOKED_AT_BYTES = 16 * 1024
TOLD_CHARACTERS = 500
DEATHS_WHILE_STARTING = 5
"""So many deaths of one part before everything is ready mean that it cannot start."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process of the cluster."""

    name: str
    command: Sequence[str]
    log: Path
    ready: Callable[[], Awaitable[list[str]]]
    """What it still waits for; empty when it is ready."""
    env: Mapping[str, str] = field(default_factory=dict)
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 15.0
    """How long it may take to stop before it is killed."""
    hold_s: float = 0.0
    """Kept down so long after it died, before it is started again (for tests)."""


def pause_s(deaths: int) -> float:
    """How long to wait before a part is started again after so many deaths in a row: at once after the first."""
    return 0.0 if deaths <= 1 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (deaths - 2))


class Keeper:
    """Keeps one part running."""

    def __init__(self, part: Part, say: Callable[[str, str], None], changed: Callable[[], None]) -> None:
        self.part = part
        self.restarts = 0
        self.deaths = 0
        self.last_exit: int | None = None
        self.process: Seen | None = None
        self._say = say
        self._changed = changed
        self._child: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Keep it running from now on."""
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.part.name}")

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self.last_exit = await self._run()
            self.process = None
            self._changed()
            if self._stopping.is_set():
                return
            self.deaths = 1 if time.monotonic() - began > LIVED_S else self.deaths + 1
            wait_s = self.part.hold_s or pause_s(self.deaths)
            again = f"starting it again in {wait_s:g} s" if wait_s else "starting it again"
            self._say(self.part.name, f"ended ({exit_words(self.last_exit)}); {again}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            self.restarts += 1

    async def _run(self) -> int:
        try:
            self.part.log.parent.mkdir(parents=True, exist_ok=True)
            with self.part.log.open("ab") as log:
                # A session of its own: Ctrl-C at the terminal reaches only ``up``, which stops parts in order.
                self._child = await asyncio.create_subprocess_exec(
                    *self.part.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.part.env},
                    start_new_session=True,
                )
        except OSError as error:
            self._say(self.part.name, f"cannot be started: {error}")
            return 127
        self.process = seen(self._child.pid)
        self._changed()
        return await self._child.wait()

    def begin_anew(self) -> None:
        """Ask it to end; it is started again at once."""
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(self.part.stop_signal)

    async def stop(self) -> None:
        """Ask it to end; kill its whole session after the grace."""
        self._stopping.set()
        child = self._child
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(self.part.stop_signal)
            try:
                await asyncio.wait_for(child.wait(), self.part.grace_s)
            except TimeoutError:
                self._say(self.part.name, f"did not stop within {self.part.grace_s:g} s: killed")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        if self._task is not None:
            await self._task


class Supervisor:
    """All parts together. ``say(part, line)`` is told what happens; ``changed()`` when a process came or went."""

    def __init__(self, say: Callable[[str, str], None], changed: Callable[[], None]) -> None:
        self.keepers: dict[str, Keeper] = {}
        self._say = say
        self._changed = changed

    def start(self, part: Part) -> None:
        """Keep it running from now on."""
        keeper = self.keepers[part.name] = Keeper(part, self._say, self._changed)
        keeper.start()

    async def wait_ready(self, names: Sequence[str], deadline_s: float) -> None:
        """Return when every named part is ready. Raises Failed when one keeps dying, or the deadline passes."""
        end = time.monotonic() + deadline_s
        waiting = {name: ["not asked yet"] for name in names}
        pause = 0.02
        while True:
            for name, reasons in zip(waiting, await asyncio.gather(*(self._reasons(n) for n in waiting)), strict=True):
                waiting[name] = reasons
            waiting = {name: reasons for name, reasons in waiting.items() if reasons}
            if not waiting:
                return
            for name in waiting:
                keeper = self.keepers[name]
                if keeper.deaths >= DEATHS_WHILE_STARTING:
                    raise Failed(
                        f"{name} cannot start: it ended {keeper.deaths} times ({exit_words(keeper.last_exit)}). "
                        f"{last_words(keeper.part.log)}"
                    )
            if time.monotonic() > end:
                reasons_told = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in waiting.items())
                raise Failed(f"not ready after {deadline_s:g} s: {reasons_told}")
            await asyncio.sleep(pause)
            pause = min(0.25, pause * 1.3)

    async def _reasons(self, name: str) -> list[str]:
        keeper = self.keepers[name]
        if keeper.process is None:
            return ["not running"]
        return await keeper.part.ready()

    async def stop(self, names: Sequence[str]) -> None:
        """Stop these parts side by side."""
        await asyncio.gather(*(self.keepers[name].stop() for name in names if name in self.keepers))


def exit_words(status: int | None) -> str:
    """An exit status for a person."""
    if status is None:
        return "exit status not known"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def last_words(log: Path) -> str:
    """What a part's log says of its end: its last error, or its last lines."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOOKED_AT_BYTES))
            lines = [readable(line) for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    errors = [line for line in lines if " error: " in line]
    end = " / ".join(line[:TOLD_CHARACTERS] for line in (errors[-1:] or lines[-3:]))
    return f"Its log {log} ends with: {end}" if end else f"Its log {log} is empty"
