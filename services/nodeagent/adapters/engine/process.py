"""Engine processes: started so that they outlive the agent, found again, and stopped to the last descendant.

Every engine is the leader of a session of its own and carries a mark in its environment, which its
descendants inherit. By session, by descent and by mark its processes are found even when the agent that
started them died between starting one and writing its number down.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from services.nodeagent.core.shard.record import EngineProcess

MARK = "LLMGW_SHARD"
"""Environment variable naming the shard a process belongs to: ``<data folder>//<shard id>``."""

# What an engine gets of the agent's own environment. Anything else (credentials, settings) is not its business.
_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH")

_KILL_DEADLINE_S = 10.0
"""How long a killed process may stay in the table: one in a device driver's call takes seconds to unwind."""


_ARGUMENTS_MS = 250


class StillRunning(Exception):
    """Processes of an engine survived SIGKILL: they hang in the kernel, or get no time to end."""

    def __init__(self, pids: Iterable[int]) -> None:
        numbers = sorted(pids)
        hanging = [pid for pid in numbers if state_of(pid) == "D"]
        why = (
            f"{', '.join(map(str, hanging))} hang in the kernel, in a driver's call or on a disk that does not answer"
            if hanging
            else "none hangs in the kernel: the machine is too busy to end them"
        )
        super().__init__(f"processes {', '.join(map(str, numbers))} did not end after SIGKILL; {why}")


class Entry(msgspec.Struct, frozen=True):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    started: int


def mark_of(data_dir: Path, shard_id: str) -> str:
    """The mark of a shard's processes: the value of ``MARK`` in their environment."""
    return f"{data_dir.resolve()}//{shard_id}"


def boot_id() -> str:
    """Which start of the machine this is; empty when the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


_NOT_READ = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The agent lacks something; nothing is said about the process."""


def entry(pid: int) -> Entry | None:
    """A live process; None when there is none of that number or only its corpse. Raises OSError when the agent itself
    has no file descriptor or memory left to look."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError as error:
        if error.errno in _NOT_READ:
            raise
        return None
    # The command name in brackets may hold anything, so the fields are counted from its end.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Entry(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does (``D``: it waits, not to be interrupted); empty when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return stat[stat.rindex(b")") + 2 :][:1].decode()


def table() -> dict[int, Entry]:
    """Every live process."""
    entries = (entry(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in entries if process is not None}


def command_of(pid: int) -> tuple[str, ...]:
    """The command line the process table shows; empty when it cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def _marks(pid: int) -> str | None:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    prefix = f"{MARK}=".encode()
    for part in raw.split(b"\0"):
        if part.startswith(prefix):
            return part[len(prefix) :].decode(errors="replace")
    return None


def describe(pid: int) -> EngineProcess | None:
    """What identifies the live process ``pid``."""
    current = entry(pid)
    if current is None:
        return None
    return EngineProcess(pid=pid, started=current.started, boot=boot_id(), command=command_of(pid))


def alive(process: EngineProcess) -> bool:
    """Whether that very process lives, not another that got its number."""
    current = entry(process.pid)
    return current is not None and current.started == process.started and process.boot == boot_id()


def same(process: EngineProcess) -> bool:
    """Alive, and still the program that was started: what may be adopted."""
    return alive(process) and command_of(process.pid) == process.command


def marked(data_dir: Path) -> dict[str, list[Entry]]:
    """Every live process that any engine of this data folder left, by shard id."""
    prefix = mark_of(data_dir, "")
    by_shard: dict[str, list[Entry]] = {}
    for process in table().values():
        mark = _marks(process.pid)
        if mark is not None and mark.startswith(prefix):
            by_shard.setdefault(mark[len(prefix) :], []).append(process)
    return by_shard


def is_engine(pid: int, data_dir: Path) -> bool:
    """Whether a process belongs to an engine of this data folder."""
    mark = _marks(pid)
    return mark is not None and mark.startswith(mark_of(data_dir, ""))


def members(process: EngineProcess | None, mark: str, known: Iterable[Entry] = ()) -> list[Entry]:
    """Every live process of one engine: itself, its session, whoever descends from these, whoever has its mark, and
    what lives of those that were ``known`` to belong to it."""
    everyone = table()
    ours = {pid for pid in everyone if _marks(pid) == mark}
    ours |= {
        process_entry.pid
        for process_entry in known
        if process_entry.pid in everyone and everyone[process_entry.pid].started == process_entry.started
    }
    if process is not None and process.boot == boot_id():
        holder = everyone.get(process.pid)
        # A session's number is not given away while the session lives; another leader means another session.
        if holder is None or holder.started == process.started:
            ours |= {e.pid for e in everyone.values() if e.session == process.pid and e.started >= process.started}
        if holder is not None and holder.started == process.started:
            ours.add(process.pid)
    grew = True
    while grew:
        more = {e.pid for e in everyone.values() if e.parent in ours} - ours
        ours |= more
        grew = bool(more)
    ours.discard(os.getpid())
    return [everyone[pid] for pid in sorted(ours)]


def listens(process: EngineProcess, mark: str, port: int) -> bool:
    """Whether the engine itself listens on ``port``, and not another program that was faster to take it."""
    for member in members(process, mark):
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(member.pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
    return False


def leader(mark: str) -> EngineProcess | None:
    """The first process of an engine whose number nobody wrote down: the one its session is named after."""
    for candidate in table().values():
        if candidate.session == candidate.pid and _marks(candidate.pid) == mark:
            return describe(candidate.pid)
    return None


class Engines:
    """Starts and stops engine processes and collects the exit codes of those it started itself."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._ours: set[int] = set()
        self._codes: dict[int, int] = {}

    def start(self, shard_id: str, command: Sequence[str], env: Mapping[str, str], output: Path) -> EngineProcess:
        """Start an engine in a session of its own, its output appended to a file. Raises OSError."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        full = {**inherited, **env, MARK: mark_of(self._data_dir, shard_id)}
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            command[0],
            list(command),
            full,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE),
        )
        self._ours.add(pid)
        described = describe(pid)
        for _ in range(_ARGUMENTS_MS):
            if described is None or described.command:
                break
            # The kernel wakes the parent a moment before the new program's arguments are in its table.
            time.sleep(0.001)
            described = describe(pid)
        # Dead already: the number is kept so that its end is seen and its code collected like any other's.
        return described or EngineProcess(pid=pid, started=0, boot=boot_id(), command=tuple(command))

    def running(self, process: EngineProcess) -> bool:
        """Whether it has not ended, as far as can be known."""
        self._collect(process.pid)
        if process.pid in self._ours:
            # Ours until the kernel gives its code; one whose threads are still ending looks like a corpse before.
            return True
        try:
            return process.pid not in self._codes and alive(process)
        except OSError:
            return True  # not known, and no reason to give it up

    def adopt(self, process: EngineProcess) -> None:
        """Take over a process an earlier agent started. It is a child of ours when that agent was this very process,
        which began anew in its own place: its code is ours to collect then."""
        with contextlib.suppress(ChildProcessError):
            ended_pid, status = os.waitpid(process.pid, os.WNOHANG)
            if ended_pid:
                self._codes[process.pid] = os.waitstatus_to_exitcode(status)
            else:
                self._ours.add(process.pid)

    def exit_code(self, process: EngineProcess) -> int | None:
        """How it ended; a signal is negative. None: it runs, or it was another agent's child."""
        self._collect(process.pid)
        return self._codes.get(process.pid)

    def _collect(self, pid: int) -> None:
        if pid not in self._ours:
            return
        try:
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            self._ours.discard(pid)
            return
        if ended_pid:
            self._ours.discard(pid)
            self._codes[pid] = os.waitstatus_to_exitcode(status)

    async def stop(self, shard_id: str, process: EngineProcess | None, grace_s: float) -> None:
        """TERM to every process of the engine, KILL after ``grace_s``; returns when the table shows none.

        Raises StillRunning.
        """
        mark = mark_of(self._data_dir, shard_id)
        begun = time.monotonic()
        asked: set[tuple[int, int]] = set()
        left: list[Entry] = []
        while True:
            # Looked up anew each round: what a dying engine starts in the meantime belongs to it as well. And those of
            # the last round: a descendant in a session of its own, without the mark, is not found any more once its
            # parent is gone.
            left = await asyncio.to_thread(members, process, mark, left)
            if process is not None:
                # It may have died while the others were looked up.
                self._collect(process.pid)
            if not left and (process is None or process.pid not in self._ours):
                return
            waited = time.monotonic() - begun
            if waited > grace_s + _KILL_DEADLINE_S:
                raise StillRunning(
                    {e.pid for e in left} | ({process.pid} & self._ours if process is not None else set())
                )
            for member in left:
                if waited > grace_s:
                    _signal(member, signal.SIGKILL)
                elif (member.pid, member.started) not in asked:
                    asked.add((member.pid, member.started))
                    _signal(member, signal.SIGTERM)
            await asyncio.sleep(0.05 if waited < 1 else 0.2)


def _signal(target: Entry, number: signal.Signals) -> None:
    current = entry(target.pid)
    if current is None or current.started != target.started:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(target.pid, number)


class Usage(msgspec.Struct, frozen=True):
    """What an engine's processes hold and have used."""

    rss_mb: int
    cpu_s: float
    pids: frozenset[int] = frozenset()


_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def usages(processes: Mapping[str, EngineProcess]) -> dict[str, Usage]:
    """What each engine uses, by shard id, its descendants counted in; one pass over the process table for all."""
    everyone = table()
    children: dict[int, list[int]] = {}
    for process_entry in everyone.values():
        children.setdefault(process_entry.parent, []).append(process_entry.pid)
    by_shard = {}
    for shard_id, process in processes.items():
        first = everyone.get(process.pid)
        if first is None or first.started != process.started:
            continue
        ours = {process_entry.pid for process_entry in everyone.values() if process_entry.session == process.pid} | {
            process.pid
        }
        waiting = list(ours)
        while waiting:
            fresh = [child for child in children.get(waiting.pop(), ()) if child not in ours]
            ours.update(fresh)
            waiting += fresh
        by_shard[shard_id] = _usage(ours)
    return by_shard


def _usage(pids: set[int]) -> Usage:
    pages, ticks = 0, 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (OSError, IndexError):
            continue
        fields = stat[stat.rindex(b")") + 2 :].split()
        ticks += int(fields[11]) + int(fields[12])
    return Usage(pages * _PAGE // 2**20, ticks / _TICKS, frozenset(pids))
