"""``llmgw run`` and ``llmgw settings``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from cli.failure import Failed
from cli.output import Output, json_option
from libs.runtime.settings import SettingsError
from services import entry
from services.entry import SERVICES, ServiceName

service_argument = click.argument("service", type=click.Choice(SERVICES))
settings_option = click.option(
    "--settings",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file; variables LLMGW_<SERVICE>_<FIELD> overrule it.",
)


@click.command()
@service_argument
@settings_option
@click.option(
    "--stop-engines",
    is_flag=True,
    help="Of nodeagent: instead of running it, stop every engine it left running, and end.",
)
def run(service: ServiceName, file: Path | None, stop_engines: bool) -> None:
    """Run one service in the foreground until it is asked to stop."""
    if stop_engines:
        if service != "nodeagent":
            raise click.UsageError("only nodeagent has engines to stop")
        asyncio.run(stop_engines_of(file))
        return
    try:
        sys.exit(entry.run(service, file))
    except SettingsError as error:
        raise Failed(str(error)) from None


async def stop_engines_of(file: Path | None) -> list[str]:
    """Stop every engine of a node agent that does not run any more; the shards that were stopped. Raises Failed."""
    try:
        return await entry.stop_engines(file)
    except SettingsError as error:
        raise Failed(str(error)) from None
    except Exception as error:
        raise Failed(f"the engines could not be stopped: {error}") from None


@click.command()
@service_argument
@settings_option
@json_option
def settings(service: ServiceName, file: Path | None, out: Output) -> None:
    """Every setting of a service: its default, its meaning, its value and where that comes from."""
    try:
        described = entry.settings_of(service, file).describe()
    except SettingsError as error:
        raise Failed(str(error)) from None
    lines: list[str] = []
    for setting in described:
        default = f", default {setting.default}" if setting.source != "default" else ""
        lines += [f"{setting.name} = {setting.value}  (from {setting.source}{default})", f"    {setting.meaning}"]
        lines.append(f"    {setting.type}; variable {setting.variable}")
    out.result(described, lines)
