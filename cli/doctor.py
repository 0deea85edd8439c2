"""``llmgw doctor``: what is wrong with this machine, without the bus."""

from __future__ import annotations

from pathlib import Path

import click

from cli.failure import Failed
from cli.home import Home, default
from cli.say import say
from libs.runtime.settings import SettingsError
from libs.runtime.terminal_text import in_json
from services import entry


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
    try:
        report = entry.doctor(file)
    except SettingsError as error:
        raise Failed(str(error)) from None
    # As it is: fields of facts that hold their defaults are left out.
    say((in_json(report.json()) if as_json else report.text()).rstrip())
    return int(report.broken)
