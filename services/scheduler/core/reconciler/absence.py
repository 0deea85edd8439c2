"""What becomes of replicas whose machines were lost: they are back, others stand in their place, or they make way."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from libs.events.replica import ReplicaRecovered, ReplicaStopped
from services.scheduler.core.placement.placement import Search
from services.scheduler.core.state.state import Replica

from .demand import why_none
from .lifecycle import answers, overdue
from .nodes import ABSENT_AFTER

if TYPE_CHECKING:
    from .model_reconciler import ModelReconciler

GIVEN_UP_AFTER = timedelta(seconds=30)
"""Of what is left of a replica over several machines, where its successor needs the room."""


def returning(look: ModelReconciler) -> None:
    serving = sum(look.serves(r) and look.outdated(r) is None for r in look.replicas)
    for replica in look.replicas:
        if replica.phase != "lost":
            continue
        where = ", ".join(replica.machines)
        if replica.gone:
            reason = f"nothing of it was left when {where} came back"
            look.say(ReplicaStopped(at=look.now, replica_id=replica.replica_id, model=look.model.name, reason=reason))
        elif look.state.silent(replica) and len(replica.shards) == 1:
            continue  # it may be back, and until then it may serve
        elif (over := _over(look, replica, serving, where)) is not None:
            look.drain(replica, over)
        elif look.state.silent(replica):
            continue
        elif _is_back(look, replica):
            url = next(iter(replica.shards.values())).url
            look.say(ReplicaRecovered(at=look.now, replica_id=replica.replica_id, model=look.model.name, url=url))
            serving += 1
        elif (late := _not_back(look, replica, where)) is not None:
            look.drain(replica, late)


def _over(look: ModelReconciler, replica: Replica, serving: int, where: str) -> str | None:
    """Why a lost replica is wanted no more, wherever its machines are."""
    if not look.wanted:
        return why_none(look.state, look.model)
    if (outdated := look.outdated(replica)) is not None:
        return outdated
    if serving >= look.wanted:
        return f"others serve in its place since {where} was lost"
    if any(shard.ended for shard in replica.shards.values()):
        return f"a part of it has ended since {where} was lost"
    return None


def _is_back(look: ModelReconciler, replica: Replica) -> bool:
    return look.heartbeats is not None and replica.whole and not _absent(look, replica)


def _not_back(look: ModelReconciler, replica: Replica, where: str) -> str | None:
    machines = look.state.facts.machines
    back_since = max((machines[m].here_since for m in replica.machines if m in machines), default=look.now)
    if _absent(look, replica) and look.now - back_since >= ABSENT_AFTER:
        return f"{where} came back without it"
    waiting = [s for s in replica.shards.values() if s.phase != "ready"]
    return overdue(look.state, replica, waiting, look.heartbeats, look.now)


def _absent(look: ModelReconciler, replica: Replica) -> bool:
    """Whether a machine, which speaks, shows no process of its shard."""
    if look.heartbeats is None:
        return False
    for shard_id, shard in replica.shards.items():
        heard = look.heartbeats.get(shard.placement.machine_id)
        if heard is not None and heard.present and shard_id not in heard.shards:
            return True
    return False


def give_up(look: ModelReconciler, search: Search) -> bool:
    """Stop what is left of a replica over several machines, one of them lost, if its successor then fits.

    It may be whole and only not heard. So whoever answers goes on, and an engine that waits for a dead rank is
    given time for its own agent to find out.
    """
    for replica in look.replicas:
        if replica.phase != "lost" or len(replica.shards) == 1 or not look.state.silent(replica):
            continue
        if not search.placements_without(replica.shards, replica.machines):
            continue
        look.look_for_use()
        if look.now - replica.since >= GIVEN_UP_AFTER and not answers(replica, look.round.traffic):
            look.drain(replica, f"{replica.reason} for {GIVEN_UP_AFTER.seconds} s; its successor needs its room")
        return True
    return False
