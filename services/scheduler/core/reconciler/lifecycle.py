"""What happens next to one replica, whatever its model wants: facts about its shards, and timers."""

from __future__ import annotations

from datetime import datetime, timedelta

from libs.events.replica import (
    ReplicaDraining,
    ReplicaFailed,
    ReplicaLost,
    ReplicaReady,
    ReplicaStopped,
    ReplicaStopping,
)
from libs.events.sources import kept_as
from services.scheduler.core.inputs.heartbeats import Heartbeats
from services.scheduler.core.inputs.traffic import ANSWERS_WITHIN_MS, Traffic
from services.scheduler.core.state.facts import Model, Replica, Shard
from services.scheduler.core.state.state import State

from .nodes import ABSENT_AFTER, Decision

BACK_OFF = timedelta(seconds=10)
MAX_BACK_OFF = timedelta(minutes=5)
PARK_AFTER = 5
"""Failures in a row, after which starting again is left to a person."""

STABLE_AFTER = timedelta(minutes=1)
"""A replica ready for so long has worked: failures before it are not in a row with what comes."""
FORGET_AFTER = timedelta(hours=1)
"""Beyond the startup time: a failure so long ago is not in a row with a new one."""

DRAIN_GRACE = timedelta(minutes=5)
"""For requests in flight; an agent stops a draining shard sooner when nothing is left to finish."""
TAKE_UP = timedelta(minutes=2)
"""An agent says at once that it has taken up a shard; one that hears nothing for so long is not working."""
AGENT_FIRST = timedelta(seconds=30)
"""An agent sees what its engine writes too, and says what it was doing: its word on a start is waited for."""
NEVER_TAKEN_UP = timedelta(seconds=10)
"""A shard that was withdrawn before its machine said a word about it: its word may be under way for so long."""


def failing(state: State, model: Model, now: datetime) -> bool:
    """Whether the failures counted so far are still in a row with the next one."""
    if model.failures == 0 or model.failed_at is None:
        return False
    longest = max(p.startup_timeout_s for p in model.spec.profiles)
    if now - model.failed_at >= FORGET_AFTER + timedelta(seconds=longest):
        return False
    return not any(
        r.phase == "ready" and r.placed > model.failed_position and _stable(r, now)
        for r in state.of_model[model.name].values()
    )


def _stable(replica: Replica, now: datetime) -> bool:
    return replica.ready_at is not None and now - replica.ready_at >= STABLE_AFTER


def next_step(
    state: State, model: Model, replica: Replica, heartbeats: Heartbeats | None, traffic: Traffic | None, now: datetime
) -> Decision | None:
    """The next event of this replica, or None if there is nothing to say."""
    if replica.phase in ("placed", "ready"):
        return (
            _lost(state, replica, heartbeats, traffic, now)
            or _ended(state, model, replica, now)
            or _start(state, replica, heartbeats, now)
        )
    if replica.phase in ("draining", "stopping", "failed"):
        return _stop(state, replica, heartbeats, now)
    return None


def _lost(
    state: State, replica: Replica, heartbeats: Heartbeats | None, traffic: Traffic | None, now: datetime
) -> Decision | None:
    """It is to be placed anew: its machine is lost, and its engine does not answer either."""
    for machine_id in replica.machines:
        machine = state.facts.machines.get(machine_id)
        if machine is not None and machine.lost and answers_nobody(replica, heartbeats, traffic):
            lost = ReplicaLost(at=now, replica_id=replica.replica_id, model=replica.model, machine_id=machine_id)
            return f"EVENTS:{machine.position}", lost
    return None


def answers_nobody(replica: Replica, heartbeats: Heartbeats | None, traffic: Traffic | None) -> bool:
    """Gateways were heard for long enough, and none of them says that its engine answered just now.

    A leader that hears nobody, or has only begun to, concludes nothing.
    """
    if heartbeats is None:
        return False
    if traffic is None:
        return True
    if traffic.listening_ms < ANSWERS_WITHIN_MS:
        return False
    use = traffic.of(replica.replica_id)
    return bool(use.unanswered) or use.answered_ms is None or use.answered_ms >= ANSWERS_WITHIN_MS


def _ended(state: State, model: Model, replica: Replica, now: datetime) -> Decision | None:
    """A shard has ended while it was wanted."""
    for shard in replica.shards.values():
        where = shard.placement.machine_id
        if shard.phase == "failed":
            reason = f"failed on {where} while {shard.failed_in or 'running'}: {shard.reason}"
            return _fail(state, model, replica, reason, f"EVENTS:{shard.position}", now)
        if shard.phase == "stopped":
            reason = f"{where} stopped it" + (f": {shard.reason}" if shard.reason else "")
            if replica.phase == "placed":
                return _fail(state, model, replica, reason, f"EVENTS:{shard.position}", now)
            # It had served and was stopped on purpose: no fault of the model.
            drain = ReplicaDraining(at=now, replica_id=replica.replica_id, model=replica.model, reason=reason)
            return f"EVENTS:{shard.position}", drain
        if shard.phase in ("starting", "loading") and replica.phase == "ready":
            reason = f"{where} starts it anew: it had lost the engine without a word"
            return _fail(state, model, replica, reason, f"EVENTS:{shard.position}", now)
    return None


def _start(state: State, replica: Replica, heartbeats: Heartbeats | None, now: datetime) -> Decision | None:
    waiting = [s for s in replica.shards.values() if s.phase != "ready"]
    url = next(iter(replica.shards.values())).url
    if replica.phase == "ready" and (waiting or url == replica.url):
        return None
    if not waiting:
        last = max(replica.shards.values(), key=lambda s: s.position)
        ready = ReplicaReady(at=now, replica_id=replica.replica_id, model=replica.model, url=url)
        return f"EVENTS:{last.position}", ready
    late = overdue(state, replica, waiting, heartbeats, now)
    if late is None:
        return None
    model = state.facts.models[replica.model]
    return _fail(state, model, replica, late, f"replica.{replica.replica_id}:startup:{waiting[0].position}", now)


def overdue(
    state: State, replica: Replica, waiting: list[Shard], heartbeats: Heartbeats | None, now: datetime
) -> str | None:
    """Why a replica that is starting has waited too long, or None. Time counts from the last progress seen."""
    if heartbeats is None:
        # Progress may have been made that we could not hear of.
        return None
    allowed = timedelta(seconds=replica.profile.startup_timeout_s) + AGENT_FIRST
    for shard in waiting:
        machine_id = shard.placement.machine_id
        if shard.phase == "wanted":
            # Where many are silent together agents have too little to do it with: elsewhere it would be no sooner.
            if now - shard.since >= TAKE_UP and state.facts.paused is None:
                return f"{machine_id} did not take it up within {TAKE_UP.seconds} s"
            continue
        idle = now - shard.since
        heartbeat = heartbeats.get(machine_id)
        if heartbeat is not None:
            fetched = (kept_as(replica.weights), replica.weights.partition("@")[0]) if replica.weights else ()
            moved = [
                heartbeat.moved_ms.get(shard.placement.shard_id),
                *(heartbeat.fetching_ms.get(name) for name in fetched),
            ]
            idle = min([idle, *(timedelta(milliseconds=ms) for ms in moved if ms is not None)])
        if idle >= allowed:
            return f"no progress on {machine_id} for {int(idle.total_seconds())} s while {shard.phase}"
    return None


def _fail(state: State, model: Model, replica: Replica, reason: str, cause: str, now: datetime) -> Decision:
    if replica.placed <= model.failed_position and model.failures:
        failures, retry_at = model.failures, model.retry_at
    else:
        failures = 1 if _stable(replica, now) or not failing(state, model, now) else model.failures + 1
        wait = min(BACK_OFF * 2 ** (failures - 2), MAX_BACK_OFF) if failures > 1 else None
        retry_at = now + wait if wait is not None else None
    failed = ReplicaFailed(
        at=now,
        replica_id=replica.replica_id,
        model=replica.model,
        reason=reason,
        failures=failures,
        retry_at=retry_at,
    )
    return cause, failed


def _stop(state: State, replica: Replica, heartbeats: Heartbeats | None, now: datetime) -> Decision | None:
    rest = [shard for shard in replica.shards.values() if not _gone(state, replica, shard, heartbeats, now)]
    if not rest:
        last = max([replica.position, *(s.position for s in replica.shards.values())])
        reason = "it failed" if replica.phase == "failed" else replica.reason
        stopped = ReplicaStopped(at=now, replica_id=replica.replica_id, model=replica.model, reason=reason)
        return f"EVENTS:{last}", stopped
    first = next(iter(replica.shards.values()))
    if replica.phase == "draining" and first.ended:
        # Only the first shard answers requests: the others cannot know when the last is done.
        reason = f"{replica.reason}; no request is left"
        stopping = ReplicaStopping(at=now, replica_id=replica.replica_id, model=replica.model, reason=reason)
        return f"EVENTS:{first.position}", stopping
    if replica.phase == "draining" and now - replica.since >= DRAIN_GRACE:
        reason = f"{replica.reason}; the grace of {DRAIN_GRACE.seconds} s for requests in flight is over"
        stopping = ReplicaStopping(at=now, replica_id=replica.replica_id, model=replica.model, reason=reason)
        return f"replica.{replica.replica_id}:grace:{replica.position}", stopping
    return None


def _gone(state: State, replica: Replica, shard: Shard, heartbeats: Heartbeats | None, now: datetime) -> bool:
    """Whether nothing of a shard that should go is left: its machine said so, or shows nothing of it."""
    if shard.ended:
        return True
    machine = state.facts.machines.get(shard.placement.machine_id)
    if machine is None:
        return True
    heartbeat = heartbeats.get(shard.placement.machine_id) if heartbeats is not None else None
    if machine.lost or heartbeat is None or not heartbeat.present or replica.phase == "draining":
        return False
    waited = now - max(replica.since, machine.here_since)
    return shard.placement.shard_id not in heartbeat.shards and waited >= (
        NEVER_TAKEN_UP if shard.phase == "wanted" else ABSENT_AFTER
    )
