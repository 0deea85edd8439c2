"""The command line itself: quick to start, and plain when it says no."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.console import readable
from cli.main import COMMANDS, HIDDEN, RENAMED, code_of, llmgw, summary
from cli.output import cell
from cli.up import hold_of


def test_naming_commands_loads_none_of_them() -> None:
    code = (
        "import sys, cli.main; "
        "print([one for one in ('nats', 'libs.bus', 'services', 'msgspec', 'yaml', 'psutil') if one in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_where_the_table_says(name: str) -> None:
    module, _, attribute = COMMANDS[name].partition(":")
    command = getattr(importlib.import_module(module), attribute)

    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in HIDDEN])
def test_the_summary_read_from_the_source_is_the_commands_own(name: str) -> None:
    command = llmgw.get_command(click.Context(llmgw), name)

    assert command is not None
    assert command.help is not None
    first = " ".join(command.help.split("\n\n")[0].split())
    assert summary(name)
    assert first.startswith(summary(name))


def test_help_lists_every_command_that_is_not_hidden_with_its_summary() -> None:
    text = " ".join(CliRunner().invoke(llmgw, ["--help"]).output.split())

    for name in COMMANDS:
        assert (f" {name} {summary(name)}" in text) == (name not in HIDDEN), name


def test_help_imports_no_command() -> None:
    code = (
        "import sys, cli.main; cli.main.code_of(['--help']); "
        "print([one for one in ('nats', 'libs.bus', 'services', 'msgspec', 'yaml', 'psutil') if one in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_words_of_an_earlier_version_still_work_and_say_what_they_are_called_now(
    old: tuple[str, ...], new: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of([*old, "--help"]) == 0

    said = capsys.readouterr()
    assert said.err == f"llmgw: `{' '.join(old)}` is called `{' '.join(new)}` now\n"
    assert said.out.startswith("Usage: ")
    assert " ".join(new) in said.out.splitlines()[0]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    found = []
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        found += leaves(below, (*path, name))
    return found


@pytest.mark.parametrize(
    ("path", "command"), leaves(llmgw), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_explains_itself_and_prints_json(path: tuple[str, ...], command: click.Command) -> None:
    options = {option for parameter in command.params for option in parameter.opts}

    assert command.help
    assert "--json" in options or path in (("run",), ("completion",))


def test_a_mistyped_command_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["stauts"]) == 2

    assert "there is no command 'stauts': did you mean 'status'?" in capsys.readouterr().err


def test_a_mistake_of_ours_is_a_sentence_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "status", "cli.nowhere:nothing")

    assert code_of(["status"]) == 1

    said = capsys.readouterr().err
    assert said.startswith("llmgw: this should not have happened: ModuleNotFoundError")
    assert "Traceback" not in said


def test_a_hold_has_a_part_and_seconds() -> None:
    assert hold_of("nats=2.5") == ("nats", 2.5)
    assert hold_of("nats") == ("nats", 30.0)
    with pytest.raises(click.UsageError, match="'soon' is not a length of time"):
        hold_of("nats=soon")


def test_a_log_line_is_shown_in_few_words() -> None:
    line = {
        "time": "2026-11-29T12:00:01.000Z",
        "level": "warning",
        "service": "guard",
        "instance": "guard-1",
        "logger": "llmgw",
        "message": "slow",
        "elapsed_ms": 12,
        "error": "Traceback …\nValueError: no",
    }

    assert readable(json.dumps(line)) == "2026-11-29T12:00:01Z warning: slow elapsed_ms=12 (ValueError: no)"
    assert readable("{not json") == "{not json"
    assert readable("plain words") == "plain words"
    assert readable("[7] 2026/11/29 15:44:36.864545 [INF] Server is ready") == ""
    assert readable("[7] 2026/11/29 15:44:36.864545 [ERR] no space") != ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), ((), "-"), (True, "yes"), (1234567, "1,234,567"), (("a", "b"), "a, b"), ("x", "x")],
)
def test_a_value_is_shown_in_a_column(value: object, shown: str) -> None:
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--nats", "nats://127.0.0.1:1"], {"LLMGW_STATE_DIR": "/nowhere"}, "nats://127.0.0.1:1"),
        (["--state-dir", "/nowhere"], {"LLMGW_NATS": "nats://127.0.0.1:1"}, "no cluster answers in /nowhere"),
        (["--state-dir", "/nowhere", "--nats", "nats://127.0.0.1:1"], {}, "name two clusters"),
        ([], {"LLMGW_STATE_DIR": "/nowhere", "LLMGW_NATS": "nats://127.0.0.1:1"}, "name two clusters"),
    ],
)
def test_which_cluster_is_meant_is_never_guessed(
    arguments: list[str],
    environment: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("cli.cluster.CONNECT_S", 0.2)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert code_of(["node", "list", *arguments]) > 0

    assert said in capsys.readouterr().err


def test_a_package_that_is_missing_is_named_with_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "cli.apply", raising=False)

    assert code_of(["apply", "-f", "x"]) == 1

    said = capsys.readouterr().err
    assert said.startswith("llmgw: the Python package yaml is not installed and this needs it: pip install ")


def test_the_command_line_needs_only_what_the_bare_wheel_brings() -> None:
    """Every module of it."""
    root = Path(__file__).parents[3]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[\[<>=]", one)[0].lower() for one in declared}
    packages = {"click": "click", "msgspec": "msgspec", "psutil": "psutil", "yaml": "pyyaml"}
    imported: set[str] = set()
    for file in (root / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    others = imported - set(sys.stdlib_module_names) - {"cli", "libs", "services"}
    assert others <= packages.keys()
    assert {packages[one] for one in others} <= names


def every_command(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(words), command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from every_command(inner, (*words, name))


def test_every_command_and_every_option_has_help() -> None:
    commands = dict(every_command(llmgw, ("llmgw",)))
    options = {
        f"{words} {option.opts[0]}": option.help
        for words, command in commands.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    }
    assert len(options) > 100
    assert [where for where, text in options.items() if not text] == []
    assert [words for words, command in commands.items() if not command.help] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model", "scale", "m", "-1"], "'REPLICAS': a number below 0 stands there: write a whole number from 0 up"),
        (["model", "scale", "m", "-12"], "'REPLICAS': a number below 0 stands there"),
        (["model", "scale", "m", "1x"], "'REPLICAS': '1x' is not a whole number from 0 up"),
        (["model", "scale", "m", "1", "--max", "-1"], "'--max': '-1' is not a whole number from 0 up"),
        (["event", "show", "0"], "'SEQUENCE': '0' is not a whole number from 1 up"),
        (["up", "--port", "70000"], "'--port': '70000' is not a whole number from 0 to 65535"),
        (["model", "scale", "m", "--mx"], "No such option"),
        (["event", "list", "--all", "-n", "6"], "-n and --all contradict each other"),
    ],
)
def test_a_number_that_is_none_is_named_with_what_may_stand_there(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(arguments) == 2
    assert words in capsys.readouterr().err
