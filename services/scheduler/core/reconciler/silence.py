"""For how long a machine may be silent before it is lost.

Many silent at once: then it is their agents, the bus or the network rather than the machines. What runs on them goes on
serving, and placing it anew would load what is in trouble already. So that pauses, and each of them has more time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from libs.events import Event
from libs.events.system import PlacingPaused, PlacingResumed
from libs.events.times import rfc3339
from services.scheduler.core.inputs.heartbeats import (
    LOST_AFTER_MS,
    QUIET_AFTER_MS,
    RESTARTS_WITHIN_MS,
    Heartbeats,
)
from services.scheduler.core.inputs.traffic import UNANSWERED_LEAST, Traffic
from services.scheduler.core.state.facts import Machine
from services.scheduler.core.state.operations import begins_anew
from services.scheduler.core.state.state import State

LEAST = 3
"""Two may die together by chance, or share a socket."""
SHARE = 0.2
"""No fleet has the room of a fifth of it free: what ran there would not fit elsewhere, or would push others out."""
ENOUGH = 0.1
"""As few as that are taken for lost one by one again. Half of ``SHARE``, so that it does not swing."""
WITHIN = timedelta(seconds=60)
"""Those that were silent or lost within so long of each other fell silent together. A site that has too little of
something is heard and not heard by turns: it has had its trouble when nothing of it was seen for so long."""
TOGETHER_MS = 120_000
"""What each may then be silent for: longer than a bus, a switch or a fleet's agents take to start again. A row of
machines that lost its power waits for so long, unless gateways say sooner that the engines there do not answer."""


def deadline_ms(state: State, machine: Machine, traffic: Traffic | None) -> int:
    """After so long without a word from it a machine is lost."""
    if state.facts.paused is not None and not _dead(state, machine, traffic):
        return TOGETHER_MS
    return RESTARTS_WITHIN_MS if begins_anew(machine) else LOST_AFTER_MS


def _dead(state: State, machine: Machine, traffic: Traffic | None) -> bool:
    """Gateways say that an engine there does not answer."""
    held = state.held.get(machine.facts.machine_id, ())
    replicas = {shard_id.rpartition("-")[0] for shard_id in held}
    return traffic is not None and any(traffic.of(replica_id).unanswered >= UNANSWERED_LEAST for replica_id in replicas)


def together(state: State, heartbeats: Heartbeats, now: datetime) -> tuple[int, int]:
    """How many machines fell silent together, and of how many."""
    lately = [was_silent for was_silent in _silent(state, heartbeats, now) if was_silent is not None]
    return sum(lately), len(lately)


def _silent(state: State, heartbeats: Heartbeats, now: datetime) -> Iterator[bool | None]:
    """Of each machine, whether it was silent lately; None: it has been lost for longer."""
    within_ms = WITHIN // timedelta(milliseconds=1)
    for machine_id, machine in state.facts.machines.items():
        if not machine.joined:
            continue
        heartbeat = heartbeats.get(machine_id)
        if machine.lost_at is not None:
            yield True if now - machine.lost_at < WITHIN else None
        elif heartbeat is None or begins_anew(machine):
            yield False
        elif not heartbeat.sampled and state.facts.paused is not None:
            yield True  # another led when it fell silent
        else:
            yield heartbeat.silent_ms >= QUIET_AFTER_MS or (
                heartbeat.gap_ms is not None and heartbeat.gap_ms < within_ms
            )


def pause_decision(state: State, heartbeats: Heartbeats, now: datetime) -> tuple[str, Event] | None:
    """Placing anew pauses or goes on; None: it stays as it is."""
    silent, of = together(state, heartbeats, now)
    paused = state.facts.paused
    if paused is None:
        if silent < LEAST or silent < SHARE * of:
            return None
        return f"system.main:silence:{state.nodes_changed}", PlacingPaused(
            at=now,
            silent=silent,
            of=of,
            least=LEAST,
            share=SHARE,
            quiet_ms=QUIET_AFTER_MS,
            within_ms=WITHIN // timedelta(milliseconds=1),
            lasts_ms=TOGETHER_MS,
        )
    if silent >= LEAST and silent > ENOUGH * of:
        return None
    return f"system.main:silence over:{paused.position}", PlacingResumed(
        at=now,
        silent=silent,
        of=of,
        paused_ms=max(0, (now - paused.at) // timedelta(milliseconds=1)),
        reason=f"{silent} of {of} machines were silent within the last {WITHIN.seconds} s",
    )


def why_paused(state: State) -> str:
    """For a person; empty: placing is not paused."""
    paused = state.facts.paused
    if paused is None:
        return ""
    return (
        f"{paused.silent} of {paused.of} machines fell silent together at {rfc3339(paused.at)}: each may be silent "
        f"for {TOGETHER_MS // 1000} s before what runs on it is placed anew"
    )
