"""Which machines may be given work: joined, lost, back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from libs.events import Event
from libs.events.node import (
    NodeJoined,
    NodeLost,
    NodeRetired,
    NodeReturned,
)
from libs.events.replica import ReplicaStopped
from services.scheduler.core.inputs.heartbeats import Heartbeat, Heartbeats
from services.scheduler.core.inputs.traffic import Traffic
from services.scheduler.core.state.facts import Machine
from services.scheduler.core.state.replicas import of_retired
from services.scheduler.core.state.state import State

from .silence import deadline_ms, pause_decision

Decision = tuple[str, Event]
"""The cause, and what happens."""

ABSENT_AFTER = timedelta(seconds=30)
"""A shard that should go and of which its machine shows no process for so long is gone."""


def milliseconds(span: timedelta) -> int:
    """Whole milliseconds of a span."""
    return span // timedelta(milliseconds=1)


def node_decisions(
    state: State,
    heartbeats: Heartbeats | None,
    traffic: Traffic | None,
    now: datetime,
    retire_after: timedelta | None = None,
) -> list[Decision]:
    """``retire_after``: how long a lost machine is known; None: for ever."""
    decisions: list[Decision] = []
    pause = pause_decision(state, heartbeats, now) if heartbeats is not None else None
    if pause is not None:
        return [pause]
    for machine_id, machine in state.facts.machines.items():
        if not machine.joined:
            decisions.append((f"EVENTS:{machine.position}", NodeJoined(at=now, machine_id=machine_id)))
        elif heartbeats is not None and (heartbeat := heartbeats.get(machine_id)) is not None:
            decisions.extend(_heard(state, machine_id, machine, heartbeat, traffic, now))
            decisions.extend(_retired(state, machine_id, machine, heartbeat, now, retire_after))
    return decisions


def _retired(
    state: State, machine_id: str, machine: Machine, heartbeat: Heartbeat, now: datetime, retire_after: timedelta | None
) -> Iterator[Decision]:
    """One that somebody lent, drained or cordoned is silent for a reason: it is left to them."""
    if retire_after is None or machine.lost_at is None or machine.mode != "open" or heartbeat.present:
        return
    if now - machine.lost_at < retire_after or still_running(state, machine_id):
        return
    reason = f"lost for more than {retire_after.days} days"
    yield (
        f"node.{machine_id}:retired:{machine.position}",
        NodeRetired(at=now, machine_id=machine_id, lost_at=machine.lost_at, reason=reason),
    )


def still_running(state: State, machine_id: str) -> list[str]:
    """Replicas with a part on a machine that gateways may still get answers of, or that have a part elsewhere which has
    not ended."""
    return [
        replica.replica_id
        for replica in of_retired(state, machine_id)
        if replica.phase in ("placed", "ready")
        or (replica.ready_at is not None and replica.whole and not _spared(state, replica.model))
        or any(not s.ended and s.placement.machine_id != machine_id for s in replica.shards.values())
    ]


def _spared(state: State, name: str) -> bool:
    """Whether a model is served elsewhere, or is to be served nowhere."""
    model = state.facts.models[name]
    stopped = model.removed or model.stopped is not None or state.facts.stopped is not None
    return stopped or any(r.phase == "ready" for r in state.replicas_of(name))


def _heard(
    state: State, machine_id: str, machine: Machine, heartbeat: Heartbeat, traffic: Traffic | None, now: datetime
) -> Iterator[Decision]:
    if machine.lost_at is None and heartbeat.silent_ms >= (deadline := deadline_ms(state, machine, traffic)):
        yield (
            f"node.{machine_id}:silence:{machine.position}",
            NodeLost(at=now, machine_id=machine_id, silent_ms=heartbeat.silent_ms, deadline_ms=deadline),
        )
    elif machine.lost_at is not None and heartbeat.present:
        yield (
            f"node.{machine_id}:heard:{machine.position}",
            NodeReturned(at=now, machine_id=machine_id, away_ms=max(0, milliseconds(now - machine.lost_at))),
        )
    if heartbeat.present:
        for shard_id, orphan in machine.orphans.items():
            if orphan.replica_id in state.facts.replicas:
                continue  # placed elsewhere: what this machine says of it ends nothing there
            known_for = now - max(orphan.since, machine.here_since)
            if shard_id not in heartbeat.shards and known_for >= ABSENT_AFTER:
                yield (
                    f"EVENTS:{orphan.position}",
                    ReplicaStopped(
                        at=now,
                        replica_id=orphan.replica_id,
                        model=orphan.model,
                        reason=f"nobody asked for it, and {machine_id} shows no process of it any more",
                    ),
                )
