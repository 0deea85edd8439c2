"""``llmgw rack …``: machines that share their power."""

from __future__ import annotations

import asyncio

import click

from cli.cluster import Cluster, on_cluster
from cli.units import WATTS
from cli.watch import watch_option
from libs.events.commands import CapRack
from libs.events.questions import RackPower, SchedulerState, StateAnswer

LOOK_S = 0.1
LOOKS = 20
"""For so long an instance is waited for that has read what was just done."""


@click.group()
def rack() -> None:
    """Racks: nodes with the same label `rack`, and what they may draw together."""


@rack.command("list")
@watch_option
@on_cluster
async def list_racks(cluster: Cluster) -> None:
    """Every rack whose power is limited."""
    racks = (await cluster.ask(SchedulerState(), StateAnswer)).racks
    columns = [("RACK", "rack"), ("MAY DRAW W", "watts"), ("DRAWS AT MOST W", "drawn_watts")]
    cluster.out.rows(racks, columns, "no rack is limited: `llmgw rack cap RACK WATTS`")


@rack.command("cap")
@click.argument("name", metavar="RACK")
@click.argument("limit", metavar="[WATTS]", type=WATTS, required=False)
@on_cluster
async def cap(cluster: Cluster, name: str, limit: float | None) -> None:
    """Limit what the GPUs of a rack may draw together; without WATTS: no limit."""
    watts = round(limit) if limit is not None else None
    outcome = await cluster.send(CapRack(rack=name, watts=watts))
    done = f"rack {name} may draw {watts} W" if watts is not None else f"rack {name} has no limit"
    racks = await _racks_after(cluster, outcome.sequence or 0)
    over = [over_cap(rack) for rack in racks if rack.rack == name and rack.drawn_watts > rack.watts]
    cluster.out.result(outcome, [outcome.message or done, *over])


def over_cap(rack: RackPower) -> str:
    """What is said of a rack that may draw more than it should."""
    return (
        f"rack {rack.rack}: what runs there may draw {rack.drawn_watts} W, {rack.watts} W are allowed: nothing is "
        f"stopped, nothing new goes there"
    )


async def _racks_after(cluster: Cluster, sequence: int) -> tuple[RackPower, ...]:
    """Those that are limited, as of an instance that has read so far; none if none has for seconds."""
    for _ in range(LOOKS):
        state = await cluster.ask(SchedulerState(), StateAnswer)
        if state.position >= sequence:
            return state.racks
        await asyncio.sleep(LOOK_S)
    return ()
