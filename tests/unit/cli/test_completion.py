"""Scripts with which shells complete, and what they ask for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import COMMANDS, HIDDEN, code_of


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_it_can_read(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert code_of(["completion", shell]) == 0

    script = capsys.readouterr().out
    assert f"_LLMGW_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        assert subprocess.run([shell, "-n", str(file)], check=False).returncode == 0


def test_another_shell_is_told_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["completion", "tcsh"]) == 2

    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands(tmp_path: Path) -> None:
    program = tmp_path / "llmgw"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli.main "$@"\n')
    program.chmod(0o755)
    ask = (
        'eval "$(llmgw completion bash)"; COMP_WORDS=(llmgw re); COMP_CWORD=1; '
        '_llmgw_completion llmgw; echo "${COMPREPLY[@]}"'
    )

    done = subprocess.run(
        ["bash", "-c", ask], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )

    assert done.stdout.split() == ["replica"], done.stderr


def test_completing_a_command_imports_none(tmp_path: Path) -> None:
    code = (
        "import sys, cli.main, click; found = cli.main.llmgw.shell_complete(click.Context(cli.main.llmgw), ''); "
        "print(*[one.value for one in found]); print([one for one in ('nats', 'msgspec') if one in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    names, modules = done.stdout.splitlines()
    assert names.split() == [name for name in COMMANDS if name not in HIDDEN]
    assert modules == "[]"
