"""The state as it is kept on disk, and back: the facts and the last happenings; everything else follows from them."""

from __future__ import annotations

import msgspec

from libs.events import Event, decode, encode

from .facts import Facts
from .state import History, State


class Kept(msgspec.Struct):
    """What is written of a state."""

    position: int
    election: int
    term: int
    facts: Facts
    histories: dict[str, list[tuple[int, msgspec.Raw]]]
    """Model to its last happenings: sequence and event."""


def keep(state: State) -> Kept:
    """Shares the facts with ``state``: to be written before the next event is folded."""
    histories = {
        name: [(position, msgspec.Raw(encode(event))) for position, event in history.events]
        for name, history in state.histories.items()
    }
    return Kept(state.position, state.election, state.term, state.facts, histories)


def restore(kept: Kept) -> State:
    """A state that folds and is decided on as the one that was kept. Raises UnknownTag, BadPayload."""
    state = State()
    state.facts, state.position, state.election, state.term = kept.facts, kept.position, kept.election, kept.term
    for model in kept.facts.models:
        state.of_model[model] = {}
    for replica_id, replica in kept.facts.replicas.items():
        state.of_model[replica.model][replica_id] = replica
        state.index(replica)
        for shard_id, shard in replica.shards.items():
            if not shard.ended:
                state.held.setdefault(shard.placement.machine_id, {})[shard_id] = shard.placement
    for name, happenings in kept.histories.items():
        history = state.histories[name] = History()
        for position, line in happenings:
            event = decode(bytes(line))
            assert isinstance(event, Event)
            history.events.append((position, event))
    # Whoever works from here on has seen nothing yet: all that matters is that what comes next is later.
    state.capacity_changed = state.nodes_changed = state.mirrors_changed = state.hardware_changed = kept.position
    for machine_id in kept.facts.machines:
        state.changed[machine_id] = kept.position
    return state
