"""The command line itself: quick to start, and plain when it says no."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from cli.main import COMMANDS, code_of, llmgw


def test_naming_commands_loads_none_of_them() -> None:
    code = (
        "import sys, cli.main; "
        "print([one for one in ('nats', 'libs.bus', 'services', 'msgspec', 'yaml', 'psutil') if one in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_where_the_table_says(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)

    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help


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
    assert "--json" in options or path == ("run",)


def test_a_mistyped_command_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["stauts"]) == 2

    assert "there is no command 'stauts': did you mean 'status'?" in capsys.readouterr().err


def test_a_mistake_of_ours_is_a_sentence_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "status", ("cli.nowhere:nothing", ""))

    assert code_of(["status"]) == 1

    said = capsys.readouterr().err
    assert said.startswith("llmgw: the Python package yaml is not installed and this needs it: pip install ")


def test_the_command_line_needs_only_what_the_bare_wheel_brings() -> None:
    """Every module of it but those that run services."""
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[\[<>=]", one)[0].lower() for one in declared}
    brought = {"click", "msgspec", "nats", "nkeys", "nacl", "psutil", "yaml", "prometheus_client", "opentelemetry"}
    assert {"click", "msgspec", "nats-py", "pynacl", "psutil", "pyyaml", "prometheus-client"} <= names
    roots = set()
    for file in (Path(__file__).parents[3] / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                roots |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                roots.add(node.module.split(".")[0])
    assert roots - set(sys.stdlib_module_names) - {"cli", "libs"} <= brought
