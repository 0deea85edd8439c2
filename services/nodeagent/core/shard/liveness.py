"""The third level of health: an engine that has work must get on with it.

Alive is the process table's word, ready is the engine's own. Neither sees an engine that answers its health
page and generates nothing, so the agent watches whether its counters move while requests run.
"""

from __future__ import annotations

import msgspec

from .engine_metrics import Readings


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one engine's progress. Times are seconds of one monotonic clock."""

    moved_at: float
    """When it last showed progress, had nothing to do, or began to be watched."""
    answered_at: float
    """When its health page last said ready."""
    progress: float | None = None
    cpu_s: float | None = None


def observed(last: Liveness, *, now: float, healthy: bool, readings: Readings | None, cpu_s: float | None) -> Liveness:
    """``last`` after one more look at the engine. ``readings`` is None when its metrics did not answer."""
    moved_at, progress = last.moved_at, last.progress
    if readings is not None:
        idle = not readings.running and not readings.waiting
        if idle or readings.progress is None or readings.progress != last.progress:
            moved_at = now
        progress = readings.progress
    else:
        # Unknown is not stuck: some engines answer their metrics between two steps only.
        moved_at = now
    answered_at = last.answered_at
    if healthy or readings is not None:
        answered_at = now
    elif cpu_s is not None and last.cpu_s is not None and cpu_s - last.cpu_s > 0.1:
        # It computes: a machine with too few cores answers late, which is busy and not hung.
        answered_at = now
    return Liveness(moved_at=moved_at, answered_at=answered_at, progress=progress, cpu_s=cpu_s)


def without(last: Liveness, seconds: float) -> Liveness:
    """``last`` if these seconds had not been: the agent itself stood still, and saw nothing of its engine."""
    return msgspec.structs.replace(last, moved_at=last.moved_at + seconds, answered_at=last.answered_at + seconds)


def hung(state: Liveness, now: float, stuck_after_s: float) -> str | None:
    """A sentence when the engine must be given up, else None."""
    if now - state.moved_at > stuck_after_s:
        return (
            f"the engine is hung: it has requests and made no progress for {now - state.moved_at:.0f} s "
            f"(limit {stuck_after_s:.0f} s)"
        )
    if now - state.answered_at > stuck_after_s:
        return (
            f"the engine is hung: it neither answered nor computed for {now - state.answered_at:.0f} s "
            f"(limit {stuck_after_s:.0f} s)"
        )
    return None
