"""How many replicas of a model are wanted, and what changes that without a person: use, idleness, a trial's end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from libs.events import Event
from libs.events.model import (
    Judged,
    ModelAutoscaled,
    ModelPromoted,
    ModelRolledBack,
    ModelSlept,
    ModelSpec,
)
from services.scheduler.core.inputs.traffic import LONG_MS, SHORT_MS, Traffic
from services.scheduler.core.state.facts import Model, Replica
from services.scheduler.core.state.state import State

from .nodes import milliseconds

CLASSES = {"high": 0, "normal": 1, "low": 2}
"""Order in which room is given."""

FULL = 0.7
"""Fewer replicas are enough if they would be no busier than this share of what they work on at once."""
HEARD_ALL_MS = 5_000
"""Gateways speak twice a second: whoever listened for so long has heard all of them."""
ASKED_LASTS = timedelta(minutes=3)
"""A wake is said again while somebody waits: one that is older, and found no room, is nobody's wish any more."""
TRIAL_FAILS = 3
"""Failures in a row of a model on trial after which the trial is over."""


class Group(msgspec.Struct, frozen=True):
    """So many replicas, with this profile or (None) with whichever fits."""

    profile: str | None
    count: int


def fixed(spec: ModelSpec) -> bool:
    """The numbers stand with the profiles."""
    return any(p.replicas is not None for p in spec.profiles)


def wanted(state: State, model: Model) -> tuple[Group, ...]:
    """Of the definition in force."""
    if model.removed or state.facts.stopped is not None or model.stopped is not None:
        return ()
    spec = model.spec
    if spec.scaling.on_demand and not model.awake:
        return ()
    if fixed(spec):
        return tuple(Group(p.name, p.replicas) for p in spec.profiles if p.replicas)
    least, most = limits(spec)
    count = least if model.scaled is None else min(max(model.scaled, least), most)
    return (Group(None, count),) if count else ()


def limits(spec: ModelSpec) -> tuple[int, int]:
    """Fewest and most replicas of a model that is wanted at all."""
    scaling = spec.scaling
    least = max(1, scaling.min) if scaling.on_demand else scaling.min
    return least, max(least, scaling.max if scaling.max is not None else least)


def on_trial(state: State, model: Model) -> int:
    """Replicas wanted of the definition on trial."""
    if model.trial is None or model.trial.spec.canary is None or not wanted(state, model):
        return 0
    return model.trial.spec.canary.replicas


def why_none(state: State, model: Model) -> str:
    """Why no replica is wanted, as a reason to stop those there are."""
    if model.removed:
        return "the model was removed"
    if state.facts.stopped is not None:
        return "the system is stopped" + (f": {state.facts.stopped}" if state.facts.stopped else "")
    if model.stopped is not None:
        return "the model is stopped" + (f": {model.stopped}" if model.stopped else "")
    if model.spec.scaling.on_demand and not model.awake:
        return "nobody asks for it"
    return "none is wanted"


# use


def watched(model: Model) -> bool:
    """Whether what gateways do may change what is wanted."""
    least, most = limits(model.spec)
    return model.trial is not None or (most > least and not fixed(model.spec)) or model.awake


def autoscale(
    state: State, model: Model, ready: Sequence[Replica], traffic: Traffic | None, now: datetime
) -> ModelAutoscaled | None:
    """Another number of replicas, or None. ``ready``: those of the definition in force that serve.

    Whoever has only begun to listen changes nothing until its windows are full: the number stands in the log.
    """
    groups = wanted(state, model)
    least, most = limits(model.spec)
    if fixed(model.spec) or most <= least or not groups or traffic is None or traffic.listening_ms < SHORT_MS:
        return None
    count = groups[0].count
    if len(ready) != count:
        return None
    changed = max([*(r.ready_at for r in ready if r.ready_at is not None), *_since(model)], default=now)
    settled_ms = milliseconds(now - changed)
    uses = [(traffic.of(r.replica_id), r.profile.parallel) for r in ready]
    asked = traffic.of_model(model.name, model.spec.loras)
    waiting = asked.waiting_short + sum(max(0.0, u.busy_short - slots) for u, slots in uses)
    firsts = [u.ttft_ms for u, _ in uses if u.ttft_ms is not None]
    ttft_ms = sum(firsts) / len(firsts) if firsts else None
    scaling = model.spec.scaling
    slots = min(slots for _, slots in uses)

    def event(replicas: int, window_ms: int, waits: float, busy: float, reason: str) -> ModelAutoscaled:
        return ModelAutoscaled(
            at=now,
            model=model.name,
            replicas=replicas,
            before=count,
            reason=reason,
            window_ms=window_ms,
            waiting_per_replica=round(waits / count, 2),
            busy_per_replica=round(busy / count, 2),
            ttft_ms=round(ttft_ms, 1) if ttft_ms is not None else None,
        )

    if settled_ms >= SHORT_MS and count < most:
        busy = sum(u.busy_short for u, _ in uses)
        if waiting / count > scaling.target_waiting:
            more = min(most, count * 2, count + max(1, math.ceil(waiting / (slots + scaling.target_waiting))))
            reason = f"{waiting / count:.1f} requests wait for each replica, {scaling.target_waiting} may"
            return event(more, SHORT_MS, waiting, busy, reason)
        if scaling.target_ttft_ms is not None and ttft_ms is not None and ttft_ms > scaling.target_ttft_ms:
            reason = f"the first token takes {ttft_ms:.0f} ms, {scaling.target_ttft_ms} ms are allowed"
            return event(count + 1, SHORT_MS, waiting, busy, reason)
    if settled_ms >= LONG_MS and count > least and traffic.listening_ms >= LONG_MS:
        waited = asked.waiting_long
        busy = sum(u.busy_long for u, _ in uses)
        slow = scaling.target_ttft_ms is not None and ttft_ms is not None and ttft_ms > FULL * scaling.target_ttft_ms
        if waited < 0.1 and not slow and busy <= FULL * slots * (count - 1):
            reason = (
                f"{busy:.1f} requests at once would fill {count - 1} replicas to {_percent(busy, slots, count - 1)}"
            )
            return event(count - 1, LONG_MS, waited, busy, reason)
    return None


def _since(model: Model) -> list[datetime]:
    return [model.scaled_at] if model.scaled_at is not None else []


def _percent(busy: float, slots: int, count: int) -> str:
    return f"{100 * busy / (slots * count):.0f} %" if count else "nothing"


# on demand


def idle_since(model: Model, replicas: Sequence[Replica], traffic: Traffic) -> datetime:
    """Since when nobody uses it: its last request, the last that waited for it, or its start."""
    times = [r.ready_at for r in replicas if r.ready_at is not None]
    used = traffic.of_model(model.name, model.spec.loras).last_used
    return max([*times, *([used] if used else []), *([model.asked_at] if model.asked_at else [])])


def evictable(model: Model, replicas: Sequence[Replica], traffic: Traffic | None, now: datetime) -> timedelta | None:
    """How long an on-demand model has been idle if it may be put to sleep for another; None: it may not.

    ``replicas``: all of its; a lost one may still answer those who reach its machine.
    """
    running = [r for r in replicas if r.phase in ("placed", "ready")]
    if traffic is None or traffic.listening_ms < HEARD_ALL_MS or not model.awake or not running:
        return None
    if any(r.phase != "ready" or r.ready_at is None for r in running):
        return None
    scaling = model.spec.scaling
    use = traffic.of_model(model.name, model.spec.loras)
    if use.waiting or any(traffic.of(r.replica_id).in_flight for r in replicas):
        return None
    if any(now - r.ready_at < timedelta(seconds=scaling.min_lifetime_s) for r in running if r.ready_at is not None):
        return None
    idle = now - idle_since(model, running, traffic)
    return idle if idle >= timedelta(seconds=scaling.evict_after_idle_s) else None


def forgotten(model: Model, replicas: Sequence[Replica], now: datetime) -> ModelSlept | None:
    """An on-demand model that was woken, found no room, and is not asked for any more."""
    if not model.awake or model.asked_at is None or not model.spec.scaling.on_demand:
        return None
    if any(r.phase in ("placed", "ready", "lost") for r in replicas) or now - model.asked_at < ASKED_LASTS:
        return None
    reason = f"nothing of it could run, and nobody has asked for it for {ASKED_LASTS.seconds} s"
    return ModelSlept(at=now, model=model.name, reason=reason, idle_ms=milliseconds(now - model.asked_at))


# trials


def judge(model: Model, replicas: Sequence[Replica], traffic: Traffic | None, now: datetime) -> Event | None:
    """The end of a trial, on what all gateways saw; None: it goes on, or there is none."""
    trial = model.trial
    if trial is None or trial.spec.canary is None:
        return None
    limits = trial.spec.canary
    tried = _seen([r for r in replicas if r.fingerprint == trial.fingerprint], traffic)
    stable = _seen([r for r in replicas if r.fingerprint == model.fingerprint], traffic)

    def rolled_back(reason: str) -> ModelRolledBack:
        return ModelRolledBack(
            at=now, model=model.name, fingerprint=trial.fingerprint, reason=reason, trial=tried, stable=stable
        )

    if model.failures >= TRIAL_FAILS:
        return rolled_back(f"it does not start: {model.last_failure}")
    if traffic is None:
        return None
    rate, usual = _rate(tried), _rate(stable)
    # Gateways spare what fails, so it may take hours to the last of its requests: that it has lost is known before.
    lost = tried.failed > (usual + limits.max_error_rate) * limits.min_requests
    if tried.requests < limits.min_requests and not lost:
        return None
    if rate > usual + limits.max_error_rate:
        return rolled_back(f"{rate:.1%} of its requests failed, {usual:.1%} of the others'")
    if tried.ttft_ms is not None and stable.ttft_ms and tried.ttft_ms > limits.max_ttft_ratio * stable.ttft_ms:
        return rolled_back(f"its first token takes {tried.ttft_ms:.0f} ms, {stable.ttft_ms:.0f} ms elsewhere")
    return ModelPromoted(
        at=now,
        model=model.name,
        fingerprint=trial.fingerprint,
        reason=f"{tried.requests} requests, {rate:.1%} failed, {usual:.1%} elsewhere",
        trial=tried,
        stable=stable,
    )


def _seen(replicas: Sequence[Replica], traffic: Traffic | None) -> Judged:
    if traffic is None:
        return Judged()
    uses = [traffic.of(r.replica_id) for r in replicas]
    firsts = sum(u.first_tokens for u in uses)
    return Judged(
        requests=sum(u.requests for u in uses),
        failed=sum(u.failed for u in uses),
        ttft_ms=round(sum(u.first_tokens_ms for u in uses) / firsts, 1) if firsts else None,
    )


def _rate(judged: Judged) -> float:
    return judged.failed / judged.requests if judged.requests else 0.0
