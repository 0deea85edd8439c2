"""Children kept running: small real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cli.failure import Failed
from cli.processes import Seen, alive, end, seen, wait_gone
from cli.supervisor import Part, Supervisor, exit_words, last_words, pause_s
from libs.testing import eventually

SLEEPS = "import time; print('here', flush=True); time.sleep(600)"


class Stage:
    """A supervisor, and what it said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[str] = []
        self.supervisor = Supervisor(lambda part, line: self.said.append(f"{part} {line}"), lambda: None)

    def part(self, name: str, code: str, *, hold_s: float = 0.0, grace_s: float = 5.0) -> Part:
        log = self.directory / f"{name}.log"

        async def ready() -> list[str]:
            return [] if log.exists() and "here" in log.read_text() else ["silent"]

        return Part(
            name=name, command=[sys.executable, "-c", code], log=log, ready=ready, hold_s=hold_s, grace_s=grace_s
        )

    def pid(self, name: str) -> int | None:
        process = self.supervisor.keepers[name].process
        return process.pid if process else None


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    await stage.supervisor.stop(list(stage.supervisor.keepers))
    for keeper in stage.supervisor.keepers.values():
        assert keeper.process is None


def replaced(stage: Stage, name: str, old: int) -> Callable[[], bool]:
    return lambda: stage.pid(name) not in (None, old)


async def test_a_part_that_is_killed_is_started_again_at_once(stage: Stage) -> None:
    stage.supervisor.start(stage.part("one", SLEEPS))
    await stage.supervisor.wait_ready(["one"], 10)
    pid = stage.pid("one")
    assert pid is not None

    os.kill(pid, signal.SIGKILL)

    await eventually(replaced(stage, "one", pid))
    assert stage.said == ["one ended (killed by SIGKILL); starting it again"]
    assert stage.supervisor.keepers["one"].restarts == 1


async def test_a_held_part_stays_down_for_its_seconds(stage: Stage) -> None:
    stage.supervisor.start(stage.part("one", SLEEPS, hold_s=0.6))
    await stage.supervisor.wait_ready(["one"], 10)
    pid = stage.pid("one")
    assert pid is not None

    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)

    await eventually(replaced(stage, "one", pid))
    assert time.monotonic() - killed >= 0.6


async def test_a_part_that_cannot_start_is_given_up_with_the_end_of_its_log(stage: Stage) -> None:
    stage.supervisor.start(stage.part("bad", "import sys; sys.exit('no database')"))

    with pytest.raises(Failed) as caught:
        await stage.supervisor.wait_ready(["bad"], 30)

    assert "bad cannot start: it ended 5 times (exit status 1)" in caught.value.message
    assert "no database" in caught.value.message


async def test_a_part_that_is_never_ready_is_told_with_its_reasons(stage: Stage) -> None:
    stage.supervisor.start(stage.part("mute", "import time; time.sleep(600)"))

    with pytest.raises(Failed, match=r"not ready after 0.3 s: mute: silent"):
        await stage.supervisor.wait_ready(["mute"], 0.3)


async def test_a_part_that_ignores_the_signal_is_killed_with_its_children(stage: Stage) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('here', child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    stage.supervisor.start(stage.part("deaf", code, grace_s=0.3))
    await stage.supervisor.wait_ready(["deaf"], 10)
    child = seen(int((stage.directory / "deaf.log").read_text().split()[1]))
    assert child is not None

    await stage.supervisor.stop(["deaf"])

    assert stage.said == ["deaf did not stop within 0.3 s: killed"]
    assert await asyncio.to_thread(wait_gone, child, 5)


async def test_a_program_that_is_not_there_is_told(stage: Stage) -> None:
    part = Part(name="gone", command=["/no/such/program"], log=stage.directory / "gone.log", ready=_never)
    stage.supervisor.start(part)

    await eventually(lambda: any("cannot be started" in line for line in stage.said))


async def _never() -> list[str]:
    return ["never"]


def test_the_first_restart_is_at_once_and_later_ones_wait_longer() -> None:
    assert [pause_s(deaths) for deaths in range(1, 9)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_processes_left_behind_are_ended_but_never_one_that_got_their_id() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    found = seen(child.pid)
    assert found is not None
    stranger = Seen(found.pid, found.started - 5)

    assert not alive(stranger)
    end([stranger])
    assert child.poll() is None

    end([found])
    assert not alive(found)
    child.wait(5)


def test_an_exit_is_told_in_words(tmp_path: Path) -> None:
    assert exit_words(3) == "exit status 3"
    assert exit_words(-11) == "killed by SIGSEGV"
    assert last_words(tmp_path / "none.log") == f"Its log {tmp_path / 'none.log'} is empty"
