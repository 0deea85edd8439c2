"""Many machines silent at once: then it is their agents, the bus or the network rather than the machines.

What runs on them goes on serving, and placing it anew would load what is in trouble already. So that pauses, until they
are heard again or have been silent for too long. One that falls silent alone is left at once.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from libs.events import Event
from libs.events.system import PlacingPaused, PlacingResumed

from .errands import begins_anew
from .hearing import Hearing
from .state import State

LEAST = 3
"""Two may die together by chance, or share a socket."""
SHARE = 0.2
"""No fleet has the room of a fifth of it free: what ran there would not fit elsewhere, or would push others out."""
ENOUGH = 0.1
"""As few as that are taken for lost one by one again. Half of ``SHARE``, so that it does not swing."""
QUIET_AFTER_MS = 5_000
"""Counted as silent before it is lost: those that fall silent together do so up to one sample apart."""
WITHIN = timedelta(seconds=60)
"""Those lost within so long of each other fell silent together."""
LASTS = timedelta(minutes=2)
"""Longer than a bus, a switch or a fleet's agents take to start again; a row of machines that lost its power waits for
so long, unless gateways say sooner that the engines there do not answer."""


def together(state: State, hearing: Hearing, now: datetime) -> tuple[int, int]:
    """How many machines fell silent together, and of how many."""
    paused = state.facts.paused
    since = (paused.at if paused is not None else now) - WITHIN
    silent = of = 0
    for machine_id, machine in state.facts.machines.items():
        if not machine.joined:
            continue
        if machine.lost_at is not None:
            if machine.lost_at < since:
                continue
            silent += 1
        elif (heard := hearing.get(machine_id)) is not None:
            silent += heard.silent_ms >= QUIET_AFTER_MS and not begins_anew(machine)
        of += 1
    return silent, of


def pause_decision(state: State, hearing: Hearing, now: datetime) -> tuple[str, Event] | None:
    """Placing anew pauses or goes on; None: it stays as it is."""
    silent, of = together(state, hearing, now)
    paused = state.facts.paused
    if paused is None:
        if silent < LEAST or silent < SHARE * of:
            return None
        return f"system.main:silence:{state.nodes}", PlacingPaused(
            at=now,
            silent=silent,
            of=of,
            least=LEAST,
            share=SHARE,
            quiet_ms=QUIET_AFTER_MS,
            within_ms=WITHIN // timedelta(milliseconds=1),
            lasts_ms=LASTS // timedelta(milliseconds=1),
        )
    lasted = now - paused.at
    if silent < LEAST or silent <= ENOUGH * of:
        reason = f"{silent} of {of} machines are silent now"
    elif lasted >= LASTS:
        reason = f"{silent} of {of} machines have been silent for {LASTS.seconds} s and are taken for lost"
    else:
        return None
    return f"system.main:silence over:{paused.position}", PlacingResumed(
        at=now, silent=silent, of=of, paused_ms=max(0, lasted // timedelta(milliseconds=1)), reason=reason
    )


def why_paused(state: State) -> str:
    """For a person; empty: placing is not paused."""
    paused = state.facts.paused
    if paused is None:
        return ""
    return (
        f"{paused.silent} of {paused.of} machines fell silent together at {paused.at:%H:%M:%S} UTC: what runs on them "
        f"is not placed anew before they are heard, or {LASTS.seconds} s are over"
    )
