"""Imports as a test asks for them: begun by a command, ended on the log."""

from __future__ import annotations

import asyncio

from libs.bus import Bus, Delivery
from libs.events import encode_token, plane
from libs.events.commands import ImportVersion
from libs.events.library import ImportEnded, VersionAdded


async def imported(bus: Bus, command: ImportVersion, deadline_s: float = 30.0) -> VersionAdded | ImportEnded:
    """Have weights imported; the event that ended it."""
    outcome = await bus.command(command)
    assert outcome.status == "done", outcome
    return await ended(bus, command.name, outcome.sequence or 0, deadline_s)


async def ended(bus: Bus, name: str, started: int, deadline_s: float = 30.0) -> VersionAdded | ImportEnded:
    """The event that ends the import which the event of a sequence started."""
    end: asyncio.Future[VersionAdded | ImportEnded] = asyncio.get_running_loop().create_future()

    async def look(delivery: Delivery) -> None:
        event = delivery.message
        if isinstance(event, VersionAdded | ImportEnded) and event.started == started and not end.done():
            end.set_result(event)

    log = await bus.follow("EVENTS", [plane("evt", "library", encode_token(name))], look, start=started)
    try:
        return await asyncio.wait_for(end, deadline_s)
    finally:
        await log.stop()
