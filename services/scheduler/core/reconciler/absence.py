"""What becomes of replicas whose machines were lost: they are back, others stand in their place, or they make way."""

from __future__ import annotations

from datetime import timedelta

from libs.events.replica import ReplicaRecovered, ReplicaStopped
from services.scheduler.core.placement.search import Search
from services.scheduler.core.state.facts import Replica

from .demand import why_none
from .lifecycle import answers_nobody, overdue
from .nodes import ABSENT_AFTER
from .round import Turn

GIVEN_UP_AFTER = timedelta(seconds=30)
"""Of what is left of a replica over several machines, where its successor needs the room."""


def returning(turn: Turn) -> None:
    """Decide about replicas whose machines were lost: they serve again, are gone, or are wanted no more."""
    serving = sum(turn.serves(r) and turn.outdated(r) is None for r in turn.replicas)
    for replica in turn.replicas:
        if replica.phase != "lost":
            continue
        where = ", ".join(replica.machines)
        if replica.gone:
            reason = f"nothing of it was left when {where} came back"
            turn.emit(ReplicaStopped(at=turn.now, replica_id=replica.replica_id, model=turn.model.name, reason=reason))
        elif turn.state.silent(replica) and len(replica.shards) == 1:
            continue  # it may be back, and until then it may serve
        elif (over := _over(turn, replica, serving, where)) is not None:
            turn.drain(replica, over)
        elif turn.state.silent(replica):
            continue
        elif _is_back(turn, replica):
            url = next(iter(replica.shards.values())).url
            turn.emit(ReplicaRecovered(at=turn.now, replica_id=replica.replica_id, model=turn.model.name, url=url))
            serving += 1
        elif (late := _not_back(turn, replica, where)) is not None:
            turn.drain(replica, late)


def _over(turn: Turn, replica: Replica, serving: int, where: str) -> str | None:
    """Why a lost replica is wanted no more, wherever its machines are."""
    if not turn.wanted:
        return why_none(turn.state, turn.model)
    if (outdated := turn.outdated(replica)) is not None:
        return outdated
    if serving >= turn.wanted:
        return f"others serve in its place since {where} was lost"
    if any(shard.ended for shard in replica.shards.values()):
        return f"a part of it has ended since {where} was lost"
    return None


def _is_back(turn: Turn, replica: Replica) -> bool:
    return turn.heartbeats is not None and replica.whole and not _absent(turn, replica)


def _not_back(turn: Turn, replica: Replica, where: str) -> str | None:
    machines = turn.state.facts.machines
    back_since = max((machines[m].here_since for m in replica.machines if m in machines), default=turn.now)
    if _absent(turn, replica) and turn.now - back_since >= ABSENT_AFTER:
        return f"{where} came back without it"
    waiting = [s for s in replica.shards.values() if s.phase != "ready"]
    return overdue(turn.state, replica, waiting, turn.heartbeats, turn.now)


def _absent(turn: Turn, replica: Replica) -> bool:
    """Whether a machine, which speaks, shows no process of its shard."""
    if turn.heartbeats is None:
        return False
    for shard_id, shard in replica.shards.items():
        heartbeat = turn.heartbeats.get(shard.placement.machine_id)
        if heartbeat is not None and heartbeat.present and shard_id not in heartbeat.shards:
            return True
    return False


def give_up(turn: Turn, search: Search) -> bool:
    """Stop what is left of a replica over several machines, one of them lost, if its successor then fits.

    It may be whole and only not heard. So whoever answers goes on, and an engine that waits for a dead rank is
    given time for its own agent to find out.
    """
    for replica in turn.replicas:
        if replica.phase != "lost" or len(replica.shards) == 1 or not turn.state.silent(replica):
            continue
        if not search.placements_without(replica.shards, replica.machines):
            continue
        turn.recheck_for_use()
        for_long = turn.now - replica.since >= GIVEN_UP_AFTER
        if for_long and answers_nobody(replica, turn.heartbeats, turn.round.traffic):
            turn.drain(replica, f"{replica.reason} for {GIVEN_UP_AFTER.seconds} s; its successor needs its room")
        return True
    return False
