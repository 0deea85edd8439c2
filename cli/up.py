"""``llmgw up`` and ``llmgw down``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import click

from cli import fleet as fleets
from cli.cluster import quiet
from cli.console import Console, blanked
from cli.failure import Failed
from cli.home import Home, Record, default
from cli.numbers import Whole
from cli.output import Output, json_option
from cli.parts import GATEWAY_PORT, Layout, ports_needed
from cli.ports import choose
from cli.processes import alive, end, seen, wait_gone
from cli.running import Running, stop_engines
from cli.say import say
from cli.supervisor import last_words
from cli.times import duration_s, written

HOLD_S = 30.0
STOP_S = 90.0
"""How long `down` waits for `up` to stop everything; each part has less."""

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="LLMGW_STATE_DIR",
    help="Where the cluster keeps everything.  [default: ~/.local/state/llmgw]",
)


@click.command()
@state_dir_option
@click.option(
    "--port",
    type=Whole(0, 65535),
    envvar=GATEWAY_PORT,
    help="The gateway's port; 0: a free one.  [default: 8080]",
)
@click.option("--detach", is_flag=True, help="Return once a chat completion succeeds; `llmgw down` stops it.")
@click.option("--no-model", is_flag=True, help="Start without the demo's model; wait for models of --fleet only.")
@click.option("--fleet", type=click.Path(path_type=Path, dir_okay=False), help="Simulated machines, and what to apply.")
@json_option
@click.option(
    "--hold",
    "holds",
    multiple=True,
    metavar="PART[=DURATION]",
    help=f"For tests: when this part dies, keep it down so long, {written(HOLD_S)} unless given.",
)
def up(
    state_dir: Path | None,
    port: int | None,
    detach: bool,
    no_model: bool,
    fleet: Path | None,
    out: Output,
    holds: tuple[str, ...],
) -> None:
    """Start a whole cluster on this machine and keep it running until Ctrl-C."""
    home = Home(state_dir or default())
    simulated = fleets.load(fleet) if fleet else fleets.Fleet()
    held = dict(map(hold_of, holds))
    home.make()
    if detach:
        home.lock().close()
        log_bytes = home.log("up").stat().st_size if home.log("up").exists() else 0
        wait_detached(home, detached(home), log_bytes)
        endpoint = home.endpoint()
        troubles = [f"but {line}" for line in home.record().reason.splitlines()]
        out.result(endpoint, [f"llmgw is up: {endpoint.base_url} (keys in {home.endpoint_file})", *troubles])
        return
    quiet()
    console = Console(home.log("up"))
    os.environ.pop(GATEWAY_PORT, None)  # it was the default of --port: the gateway is told by its file
    with home.lock():
        for log in (home.log("up"), home.log("up").with_suffix(".log.1")):
            blanked(log)
        record = home.record()
        leave_nothing(record, console)
        record.ports = choose(ports_needed(simulated.machines), record.ports, port)
        record.fleet = str(fleet.absolute()) if fleet and simulated.machines else record.fleet
        record.up, record.parts = seen(os.getpid()), {}
        home.endpoint_file.unlink(missing_ok=True)
        layout = Layout(home, record.ports, simulated.machines, held)
        if record.copied_from:
            console.say("up", f"{home.root} is a copy of {record.copied_from}: what runs there is left alone")
            layout.postgres.disown()
            record.copied_from = ""
        unknown = sorted(set(held) - set(layout.names))
        if unknown:
            raise click.UsageError(f"--hold {unknown[0]}: parts are {', '.join(layout.names)}")
        overruled = layout.overruled(os.environ)
        if overruled:
            raise Failed(
                f"`up` decides itself about {', '.join(overruled)}: unset {'it' if len(overruled) == 1 else 'them'}"
            )
        record.agents = tuple(layout.agents)
        asyncio.run(Running(layout, simulated, record, console, with_model=not no_model).run())


def hold_of(text: str) -> tuple[str, float]:
    """Part and seconds of ``PART[=DURATION]``. Raises UsageError."""
    part, given, duration = text.partition("=")
    try:
        return part, duration_s(duration) if given else HOLD_S
    except ValueError as error:
        raise click.UsageError(f"--hold {text}: {error}") from None


def leave_nothing(record: Record, console: Console) -> None:
    """End what an ``up`` that was killed left behind. Its engines stay: the new agents take them over."""
    left = {name: part.process for name, part in record.parts.items() if alive(part.process)}
    if left:
        console.say("up", f"an earlier run was killed and left {', '.join(left)}: ending them")
        end(left.values())


def detached(home: Home) -> subprocess.Popen[bytes]:
    """The same command again, without ``--detach``, as a process of its own that writes to a log."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--detach"]
    with home.log("up").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_detached(home: Home, child: subprocess.Popen[bytes], log_bytes: int) -> None:
    """Return when the cluster answers. ``log_bytes``: how long the log was before. Raises Failed when it does not come
    up.
    """
    shown = ""
    while True:
        record = home.record()
        ours = record.up is not None and record.up.pid == child.pid
        if ours and record.phase == "ready":
            return
        if ours and record.phase == "starting" and record.reason != shown:
            shown = record.reason
            say(shown, err=True)
        if child.poll() is not None:
            record = home.record()
            failed = record.up is not None and record.up.pid == child.pid and record.phase == "failed"
            raise Failed(record.reason if failed else ended_words(home.log("up"), log_bytes))
        time.sleep(0.05)


def ended_words(log: Path, log_bytes: int) -> str:
    """Why an ``up`` in the background ended: its own last sentence, which stands in the log after so many bytes."""
    lines = log.read_bytes()[log_bytes:].decode(errors="replace").splitlines()
    own = [line.removeprefix(begin) for line in lines for begin in ("llmgw: ", "Error: ") if line.startswith(begin)]
    return own[-1] if own else f"`up` ended before it was ready. {last_words(log)}"


@click.command()
@state_dir_option
@json_option
def down(state_dir: Path | None, out: Output) -> None:
    """Stop the cluster of a state directory, its engines too."""
    home = Home(state_dir or default())
    record = home.record()
    if record.up is not None and alive(record.up):
        os.kill(record.up.pid, 15)
        if not wait_gone(record.up, STOP_S):
            raise Failed(f"`up` (pid {record.up.pid}) did not stop within {STOP_S:g} s: see {home.log('up')}")
        record = home.record()
        if not any(alive(part.process) for part in record.parts.values()):
            out.result({"stopped": True}, [f"stopped the cluster in {home.root}"])
            return
        say(f"`up` ended before everything had: see {home.log('up')}", err=True)
    left = {name: part.process for name, part in record.parts.items() if alive(part.process)}
    end(left.values())
    asyncio.run(stop_engines(home, record.agents, lambda line: say(line, err=True)))
    home.endpoint_file.unlink(missing_ok=True)
    if record.parts:
        record.parts, record.phase = {}, "stopped"
        with contextlib.suppress(OSError):  # on a full disk it names processes that are gone, which is found out
            home.remember(record)
    if left:
        outcome = f"stopped what was left of the cluster in {home.root}"
    elif record.copied_from:
        outcome = f"no cluster runs in {home.root}, which is a copy of {record.copied_from}: that one is left alone"
    else:
        outcome = f"no cluster runs in {home.root}"
    out.result({"stopped": bool(left)}, [outcome])
