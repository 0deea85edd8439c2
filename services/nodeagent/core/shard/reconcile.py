"""What must be done so that what runs is what is wanted."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from libs.events.views import Desired, ShardWanted

from .record import ENDED, ShardRecord


class Start(msgspec.Struct, frozen=True):
    """A shard is to be taken up; ``generation``: of the desired state that wants it."""

    wanted: ShardWanted
    generation: int


class Stop(msgspec.Struct, frozen=True):
    """A shard is to be stopped on purpose."""

    shard_id: str
    reason: str


class Forget(msgspec.Struct, frozen=True):
    """Its end was reported and nobody wants it: what is left of it on disk may go."""

    shard_id: str


Action = Start | Stop | Forget


def newer(held: Desired | None, received: Desired) -> bool:
    """Whether ``received`` may replace what is held. Equal generations of a term are the same state, said again."""
    return held is None or (received.term, received.generation) > (held.term, held.generation)


def reconcile(desired: Desired | None, records: Mapping[str, ShardRecord]) -> list[Action]:
    """The actions that bring the machine to ``desired``; stops first, so that room is made before it is taken.

    As long as the scheduler has said nothing (None) everything stays as it is. A shard that has ended is not
    started again, however much it is wanted: the scheduler knows of its end and places another.
    """
    if desired is None:
        return []
    wanted = {shard.shard_id: shard for shard in desired.shards}
    stops: list[Action] = []
    starts: list[Action] = []
    for shard_id, record in records.items():
        shard = wanted.get(shard_id)
        ended = record.phase in ENDED
        if shard is None:
            if ended:
                stops.append(Forget(shard_id))
            elif record.phase != "stopping":
                stops.append(Stop(shard_id, "no longer wanted here"))
        elif shard.generation > record.wanted.generation:
            if ended:
                starts.append(Start(shard, desired.generation))
            elif record.phase != "stopping":
                stops.append(Stop(shard_id, f"generation {shard.generation} of it is wanted instead"))
    starts += [Start(shard, desired.generation) for shard_id, shard in wanted.items() if shard_id not in records]
    return stops + starts
