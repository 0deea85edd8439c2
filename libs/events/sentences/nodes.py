"""Sentences of machines, of nodes, of the whole system, and of who leads."""

from __future__ import annotations

from libs.events import leadership, machine, node, system
from libs.events.contract import tag_of
from libs.events.times import rfc3339

from .registry import says
from .words import because, seconds


@says(machine.MachineRegistered)
def _machine_registered(event: machine.MachineRegistered) -> str:
    gpus = "no GPU"
    if event.gpus:
        gpus = f"{len(event.gpus)} x {event.gpus[0].name}"
    elif event.gpus_reason:
        gpus = f"no GPU ({event.gpus_reason})"
    engines = ", ".join(f"{engine.engine} {engine.version}".strip() for engine in event.engines) or "no engine"
    kind = "simulated machine" if event.simulated else "machine"
    cores = f"{event.cpu_count} cores" + (f" (of {event.cpu_quota:g} allowed)" if event.cpu_quota is not None else "")
    return (
        f"{kind} {event.machine_id} registered: {cores}, {event.memory_total_mb / 1024:.0f} GiB memory, "
        f"{gpus}; it can run {engines}"
    )


@says(node.NodeJoined)
def _node_joined(event: node.NodeJoined) -> str:
    return f"node {event.machine_id} joined and may be given work"


@says(node.NodeLost)
def _node_lost(event: node.NodeLost) -> str:
    silent, deadline = seconds(event.silent_ms), seconds(event.deadline_ms)
    return f"node {event.machine_id} is lost: silent for {silent}, the deadline is {deadline}"


@says(node.NodeReturned)
def _node_returned(event: node.NodeReturned) -> str:
    return f"node {event.machine_id} is back after {seconds(event.away_ms)}"


@says(node.NodeCordoned)
def _node_cordoned(event: node.NodeCordoned) -> str:
    return f"node {event.machine_id} is cordoned: it gets nothing new{because(event.reason)}"


@says(node.NodeDrained)
def _node_drained(event: node.NodeDrained) -> str:
    stopped = ", or stopped where it has nowhere to go" if event.force else ""
    return f"node {event.machine_id} is drained: what runs there is moved away{stopped}{because(event.reason)}"


@says(node.NodeUncordoned)
def _node_uncordoned(event: node.NodeUncordoned) -> str:
    return f"node {event.machine_id} takes work again"


@says(node.NodeLent)
def _node_lent(event: node.NodeLent) -> str:
    return f"node {event.machine_id} is lent{f' to {event.to}' if event.to else ''}: what runs there is moved away"


@says(node.NodeReclaimed)
def _node_reclaimed(event: node.NodeReclaimed) -> str:
    return f"node {event.machine_id} is ours again and takes work"


@says(node.NodeRetired)
def _node_retired(event: node.NodeRetired) -> str:
    return f"node {event.machine_id}, lost since {rfc3339(event.lost_at)}, is known no more{because(event.reason)}"


_ERRANDS = {
    "restart_agent": "its agent is to start anew",
    "restart_shard": "the engine of {shard_id} is to start anew",
    "change_settings": "its agent's settings are to change: {settings}",
    "remove_weights": "its copy of {weights} is to be removed",
}


@says(node.NodeErrandGiven)
def _node_errand_given(event: node.NodeErrandGiven) -> str:
    errand = event.errand
    changes = ", ".join(f"{name}={value}" for name, value in errand.settings.items())
    what = _ERRANDS[errand.kind].format(shard_id=errand.shard_id, weights=errand.weights, settings=changes)
    return f"node {event.machine_id}: {what}{because(event.reason)}"


@says(machine.MachineErrandEnded)
def _machine_errand_ended(event: machine.MachineErrandEnded) -> str:
    return f"node {event.machine_id}: what #{event.errand} asked for is {event.outcome}{because(event.reason)}"


@says(system.SystemStopped)
def _system_stopped(event: system.SystemStopped) -> str:
    return f"the system is stopped: no model is wanted{because(event.reason)}"


@says(system.SystemStarted)
def _system_started(event: system.SystemStarted) -> str:
    return "the system is started: models are wanted as before"


@says(system.RackCapped)
def _rack_capped(event: system.RackCapped) -> str:
    most = f"may use {event.watts} W" if event.watts is not None else "may use as much power as they like"
    return f"GPUs of rack {event.rack} {most}"


@says(system.PlacingPaused)
def _placing_paused(event: system.PlacingPaused) -> str:
    return (
        f"{event.silent} of {event.of} nodes fell silent together: each may be so for {seconds(event.lasts_ms)} before "
        "what runs on it is placed anew"
    )


@says(system.PlacingResumed)
def _placing_resumed(event: system.PlacingResumed) -> str:
    return f"nodes that fall silent are lost as soon as usual, after {seconds(event.paused_ms)}: {event.reason}"


def _elected(event: leadership.Elected) -> str:
    return f"{event.instance} leads {tag_of(event).partition('.')[0]} now"


for _election in leadership.ELECTIONS.values():
    says(_election)(_elected)
