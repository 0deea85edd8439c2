"""``llmgw run`` and ``llmgw settings``. The only module of the command line that knows the services."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.failure import Failed
from cli.output import Output, json_option

if TYPE_CHECKING:
    from libs.events.contract import Event

SERVICES = {
    "gateway": "GatewaySettings",
    "scheduler": "SchedulerSettings",
    "nodeagent": "NodeAgentSettings",
    "accounting": "AccountingSettings",
    "guard": "GuardSettings",
    "mirror": "MirrorSettings",
}
"""Service to the name of its settings."""

service_argument = click.argument("service", type=click.Choice(sorted(SERVICES)))
settings_option = click.option(
    "--settings",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file; variables LLMGW_<SERVICE>_<FIELD> overrule it.",
)


def load_kind(service: str) -> Any:
    """The struct that holds the settings of a service."""
    return getattr(importlib.import_module(f"services.{service}.settings"), SERVICES[service])


def load(service: str, file: Path | None) -> Any:
    """The settings of a service, with where each came from. Raises Failed."""
    from libs.runtime.settings import SettingsError
    from libs.runtime.settings import load as load_settings

    try:
        return load_settings(load_kind(service), service, file)
    except SettingsError as error:
        raise Failed(str(error)) from None


@click.command()
@service_argument
@settings_option
@click.option(
    "--stop-engines",
    is_flag=True,
    help="Of nodeagent: instead of running it, stop every engine it left running, and end.",
)
def run(service: str, file: Path | None, stop_engines: bool) -> None:
    """Run one service in the foreground until it is asked to stop."""
    if stop_engines:
        if service != "nodeagent":
            raise click.UsageError("only nodeagent has engines to stop")
        asyncio.run(stop_engines_of(file))
        return
    from libs.bus.identities import node_identity
    from libs.runtime.run import serve

    settings = load(service, file).value
    app = importlib.import_module(f"services.{service}.app")
    if service == "gateway":
        # Several processes behind one port: it has a life of its own.
        sys.exit(app.main(settings))
    identity = node_identity(settings.machine_id) if service == "nodeagent" else service
    sys.exit(serve(service, settings, app.build, identity=identity))


async def stop_engines_of(file: Path | None) -> list[str]:
    """Stop every engine of a node agent that does not run any more; the shards that were stopped. Raises Failed."""
    app = importlib.import_module("services.nodeagent.app")
    try:
        stopped: list[str] = await app.stop_all(load("nodeagent", file).value)
    except Exception as error:
        raise Failed(f"the engines could not be stopped: {error}") from None
    return stopped


@click.command()
@service_argument
@settings_option
@json_option
def settings(service: str, file: Path | None, out: Output) -> None:
    """Every setting of a service: its default, its meaning, its value and where that comes from."""
    described = load(service, file).describe()
    lines: list[str] = []
    for one in described:
        where = f", default {one.default}" if one.source != "default" else ""
        lines += [f"{one.name} = {one.value}  (from {one.source}{where})", f"    {one.meaning}"]
        lines.append(f"    {one.type}; variable {one.variable}")
    out.one(described, lines)


def scheduler_fold(events: Iterable[tuple[int, Event]]) -> Any:
    """What the scheduler's core makes of these events (with their sequences): ``hash``, ``position``, ``summary``."""
    return importlib.import_module("services.scheduler.replay").fold(events)
