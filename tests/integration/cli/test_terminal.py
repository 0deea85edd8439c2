"""The command line at a terminal and without one: watching, confirming, completing; replicas and shards as nouns."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.bus import Bus
from libs.events.commands import DefineModel
from libs.events.views import Route
from libs.testing import eventually
from libs.testing.nats import NatsServer
from tests.integration.scheduler.agent import Agent, scheduler
from tests.unit.scheduler.harness import cpu_profile, model_spec

SPEC = model_spec("m", 1, cpu_profile(memory_mb=100, cores=4))
PROGRAM = (sys.executable, "-m", "cli.main")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, server: NatsServer, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        os.set_blocking(self._ours, False)
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments, "--nats", server.url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # it becomes the controlling terminal
        )
        os.close(theirs)
        self.shown = ""

    def read(self) -> str:
        """All that was shown until now."""
        try:
            while piece := os.read(self._ours, 65536):
                self.shown += piece.decode()
        except (BlockingIOError, OSError):
            pass
        return self.shown

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    async def shows(self, text: str, deadline_s: float = 20) -> None:
        await eventually(lambda: text in self.read(), deadline_s)

    async def ended(self) -> int:
        await eventually(lambda: self.process.poll() is not None, 20)
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(server: NatsServer, *arguments: str) -> Iterator[Terminal]:
    opened = Terminal(server, *arguments)
    try:
        yield opened
    finally:
        opened.close()


async def run(server: NatsServer, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(*PROGRAM, *arguments),
        *(() if environment else ("--nats", server.url)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture
async def served(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Bus]:
    """A scheduler, and a machine that serves the model ``m``."""
    async with scheduler(nats_server, tmp_path):
        agent = await Agent(bus, "cpu-1", tmp_path).start()
        await bus.command(DefineModel(spec=SPEC))

        async def ready() -> bool:
            route = await bus.view("routes", Route).get("m")
            return route is not None and len(route.endpoints) == 1

        await eventually(ready)
        yield bus
        await agent.stop()


async def test_on_a_terminal_it_is_redrawn_until_ctrl_c(nats_server: NatsServer, served: Bus, tmp_path: Path) -> None:
    with terminal(nats_server, "node", "list", "--watch") as watched:
        await watched.shows("cpu-1")
        assert "\x1b[H" in watched.shown
        assert "every 2s; Ctrl-C ends" in watched.shown
        other = await Agent(served, "cpu-2", tmp_path).start()
        await watched.shows("cpu-2")
        assert watched.shown.count("cpu-1") >= 2, "the whole is drawn again"

        watched.type("\x03")

        assert await watched.ended() == 0
        assert "Traceback" not in watched.shown
        assert "interrupted" not in watched.shown
        await other.stop()


async def test_elsewhere_only_what_changed_is_printed(nats_server: NatsServer, served: Bus, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*PROGRAM, "node", "list", "--watch", "--nats", nats_server.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"NODE ")
    assert (await process.stdout.readline()).startswith(b"cpu-1 ")
    other = await Agent(served, "cpu-2", tmp_path).start()
    assert (await process.stdout.readline()).startswith(b"cpu-2 ")

    process.send_signal(signal.SIGINT)

    out, err = await process.communicate()
    assert process.returncode == 0, err
    assert b"cpu-1" not in out
    assert err == b""
    await other.stop()


async def test_programs_get_a_line_of_json_when_something_changed(nats_server: NatsServer, served: Bus) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*PROGRAM, "replica", "list", "--watch", "--json", "--nats", nats_server.url),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    (replica,) = json.loads(await process.stdout.readline())
    assert (replica["model"], replica["state"], replica["machines"]) == ("m", "ready", ["cpu-1"])
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 0


async def test_what_cannot_be_watched_at_all_is_an_error(nats_server: NatsServer, served: Bus) -> None:
    code, out, err = await run(nats_server, "model", "show", "n", "--watch")

    assert (code, out) == (1, "")
    assert "there is no model 'n'" in err


async def test_replicas_and_shards_are_listed_and_shown(nats_server: NatsServer, served: Bus) -> None:
    _, listed, _ = await run(nats_server, "replica", "list", "--model", "m", "--json")
    (replica,) = json.loads(listed)
    code, shown, _ = await run(nats_server, "replica", "show", replica["replica_id"])
    assert code == 0
    assert shown.startswith(f"replica {replica['replica_id']} of m: ready on cpu-1 (profile ")
    assert "why there:" in shown
    assert f"replica {replica['replica_id']} of m serves at " in shown
    _, listed, _ = await run(nats_server, "shard", "list", "--json")
    (shard,) = json.loads(listed)
    assert (shard["shard_id"], shard["replica_id"]) == (f"{replica['replica_id']}-0", replica["replica_id"])
    assert (shard["model"], shard["machine_id"], shard["state"]) == ("m", "cpu-1", "ready")
    _, shown, _ = await run(nats_server, "shard", "show", shard["shard_id"])
    assert shown.startswith(f"shard {shard['shard_id']} of replica {replica['replica_id']} of m, on cpu-1: ready")

    for noun in ("replica", "shard"):
        code, _, err = await run(nats_server, noun, "show", "r-none")
        assert code == 1
        assert "'r-none'" in err
        assert replica["replica_id"] in err


async def test_what_destroys_is_asked_for_on_a_terminal(nats_server: NatsServer, served: Bus) -> None:
    with terminal(nats_server, "model", "remove", "m") as asked:
        await asked.shows("Remove model m and stop its replicas? [y/N]:")
        asked.type("n\n")
        assert await asked.ended() == 1
        assert "nothing was done: it was not confirmed" in asked.shown
    assert (await run(nats_server, "model", "show", "m"))[0] == 0

    with terminal(nats_server, "model", "remove", "m") as asked:
        await asked.shows("[y/N]:")
        asked.type("y\n")
        assert await asked.ended() == 0
        assert "m is removed; its replicas are stopped" in asked.shown
    assert (await run(nats_server, "model", "show", "m"))[0] == 1


async def test_without_a_terminal_it_is_refused_unless_it_is_told_not_to_ask(
    nats_server: NatsServer, served: Bus
) -> None:
    code, _, err = await run(nats_server, "model", "remove", "m")
    assert code == 1
    assert err == (
        "llmgw: nothing was done: there is no terminal to ask at whether to remove model m and stop its replicas; "
        "add --yes to do it unasked\n"
    )
    assert (await run(nats_server, "model", "remove", "m", "--yes"))[0] == 0


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("llmgw model sho", ["show"]),
        ("llmgw model show ", ["m"]),
        ("llmgw node drain c", ["cpu-1"]),
        ("llmgw node drain x", []),
        ("llmgw explain ", ["m"]),
        ("llmgw plan --lose ", ["cpu-1"]),
        ("llmgw run sche", ["scheduler"]),
    ],
)
async def test_names_are_completed(nats_server: NatsServer, served: Bus, words: str, completed: list[str]) -> None:
    code, out, err = await run(
        nats_server,
        _LLMGW_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
        LLMGW_NATS=nats_server.url,
    )

    assert (code, err) == (0, "")
    assert [line.partition(",")[2] for line in out.split()] == completed


async def test_replicas_and_shards_are_completed_too(nats_server: NatsServer, served: Bus) -> None:
    for noun, pattern in (("replica", r"plain,r-[a-z0-9]+\n"), ("shard", r"plain,r-[a-z0-9]+-0\n")):
        words = f"llmgw {noun} show r-"
        environment = {"_LLMGW_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
        _, out, _ = await run(nats_server, **environment, LLMGW_NATS=nats_server.url)
        assert re.fullmatch(pattern, out), out
