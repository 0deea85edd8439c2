"""``llmgw doctor``: what is wrong with this machine, without the bus."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from cli.home import Home, default


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the findings and every fact behind them.")
@click.option(
    "--settings",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The agent's settings file; none: that of the cluster in the state directory, should there be one.",
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Where `llmgw up` keeps its cluster."
)
def doctor(as_json: bool, file: Path | None, state_dir: Path | None) -> int:
    """Look this machine over: what cannot run, what is slower than it could be, and how to mend it.

    Exits with 1 when something is broken.
    """
    if file is None:
        known = Home(state_dir or default()).settings("nodeagent")
        file = known if known.exists() else None
    command = [sys.executable, "-m", "services.nodeagent.doctor", *(["--json"] if as_json else [])]
    # The agent's own code, in a process of its own: the command line knows no service.
    return subprocess.run([*command, *(["--settings", str(file)] if file else [])], check=False).returncode
