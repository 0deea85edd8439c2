"""What the command line may start and ask of the services. A service is imported when its name is given, not before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from libs.events import Event
    from libs.runtime.settings import CommonSettings, Loaded

    from .nodeagent.doctor import Report as Report
    from .scheduler.replay import Fold as Fold
    from .scheduler.whatif import Move as Move
    from .scheduler.whatif import WhatIf as WhatIf

ServiceName = Literal["accounting", "gateway", "guard", "mirror", "nodeagent", "scheduler"]
SERVICES: tuple[ServiceName, ...] = get_args(ServiceName)


def settings_type(service: ServiceName) -> type[CommonSettings]:
    """The struct that holds the settings of a service."""
    match service:
        case "accounting":
            from .accounting.settings import AccountingSettings

            return AccountingSettings
        case "gateway":
            from .gateway.settings import GatewaySettings

            return GatewaySettings
        case "guard":
            from .guard.settings import GuardSettings

            return GuardSettings
        case "mirror":
            from .mirror.settings import MirrorSettings

            return MirrorSettings
        case "nodeagent":
            from .nodeagent.settings import NodeAgentSettings

            return NodeAgentSettings
        case "scheduler":
            from .scheduler.settings import SchedulerSettings

            return SchedulerSettings


def settings_of(service: ServiceName, file: Path | None) -> Loaded[CommonSettings]:
    """The settings of a service, each with where it came from. Raises SettingsError."""
    from libs.runtime.settings import load

    return load(settings_type(service), service, file)


def run(service: ServiceName, file: Path | None) -> int:
    """Run a service until it is asked to stop; the exit status of its process. Raises SettingsError."""
    from libs.runtime.run import serve
    from libs.runtime.settings import load

    match service:
        case "accounting":
            from .accounting.app import build as accounting
            from .accounting.settings import AccountingSettings

            return serve(service, load(AccountingSettings, service, file).value, accounting)
        case "gateway":
            # Several processes behind one port: it has a life of its own.
            from .gateway.process.parent import main
            from .gateway.settings import GatewaySettings

            return main(load(GatewaySettings, service, file).value)
        case "guard":
            from .guard.app import build as guard
            from .guard.settings import GuardSettings

            return serve(service, load(GuardSettings, service, file).value, guard)
        case "mirror":
            from .mirror.app import build as mirror
            from .mirror.settings import MirrorSettings

            return serve(service, load(MirrorSettings, service, file).value, mirror)
        case "nodeagent":
            from libs.bus.identities import node_identity

            from .nodeagent.app import build as nodeagent
            from .nodeagent.settings import NodeAgentSettings

            settings = load(NodeAgentSettings, service, file).value
            return serve(service, settings, nodeagent, identity=node_identity(settings.machine_id))
        case "scheduler":
            from .scheduler.app import build as scheduler
            from .scheduler.settings import SchedulerSettings

            return serve(service, load(SchedulerSettings, service, file).value, scheduler)


async def stop_engines(file: Path | None) -> list[str]:
    """Stop every engine of a node agent that does not run any more; the shards that were stopped.

    Raises SettingsError, Misconfigured for the fleet file, FolderInUse while the agent runs, and StillRunning.
    """
    from libs.runtime.settings import load

    from .nodeagent.settings import NodeAgentSettings
    from .nodeagent.stop_all import stop_all

    return await stop_all(load(NodeAgentSettings, "nodeagent", file).value)


def doctor(file: Path | None) -> Report:
    """What is wrong with this machine. ``file``: settings of its agent, if it has one. Raises SettingsError."""
    from .nodeagent.doctor import report

    return report(file)


def fold_events(events: Iterable[tuple[int, Event]]) -> Fold:
    """What the scheduler's core makes of events of the log, each with its sequence in EVENTS."""
    from .scheduler.replay import fold

    return fold(events)
