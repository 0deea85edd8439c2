"""Answering for a service that cannot be led: whoever sends it a command is told so at once, and why."""

from __future__ import annotations

import asyncio

from libs.events.commands import Outcome, Problem

from .bus import Bus
from .delivery import MESSAGE_ID, Delivery
from .lease import Lease
from .transport import BusAway
from .work import Again, Worker

LOOK_S = 0.5


async def stand_aside(bus: Bus, service: str, lease: Lease, why: str) -> None:
    """Refuse commands to ``service`` for as long as nobody leads it; returns when somebody does, or the bus is away."""

    async def refuse(deliveries: list[Delivery]) -> None:
        try:
            if not await lease.free():
                raise Again("another instance leads now", 0.1)
        except BusAway as away:
            raise Again(f"the bus is away: {away}") from None
        problem = Problem(path="", message=f"no {service} can lead: {why}")
        for delivery in deliveries:
            command_id = delivery.headers.get(MESSAGE_ID, "")
            outcome = Outcome(command_id=command_id, status="refused", message=problem.message, problems=(problem,))
            await bus.answer_command(delivery, outcome)

    worker: Worker | None = None
    try:
        while await lease.free():
            worker = worker or await bus.work(f"cmd-{service}", refuse, batch=1)
            await asyncio.sleep(LOOK_S)
    except BusAway:
        pass
    finally:
        if worker is not None:
            await worker.stop()
