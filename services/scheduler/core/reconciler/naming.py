"""Names and numbers of new replicas, from what the log says."""

from __future__ import annotations

import base64
import hashlib

from libs.events.replica import ShardPlacement
from services.scheduler.core.state.facts import Model
from services.scheduler.core.state.state import State

LEADER_PORTS = 20_000, 29_000
"""Where ranks of a replica find each other: below the ports systems give to outgoing connections."""


def replica_name(model: Model, term: int, already: int) -> str:
    """The id of the next replica, from what the log says of the model and who leads. No other has it, not even one that
    the log forgot when it was put back from a copy: a machine may still run that."""
    text = f"{model.name}:{model.born}:{model.placings + already}" + (f":{term}" if term else "")
    return "r-" + base64.b32encode(hashlib.sha256(text.encode()).digest())[:8].decode().lower()


def leader_port(state: State, replica_id: str, shards: tuple[ShardPlacement, ...]) -> int:
    """A port of the leading machine that no other replica over several machines uses there."""
    low, high = LEADER_PORTS
    taken = {
        state.facts.replicas[shard_id.rpartition("-")[0]].leader_port
        for shard_id in state.held.get(shards[0].machine_id, ())
    }
    first = int.from_bytes(hashlib.sha256(replica_id.encode()).digest()[:4], "big") % (high - low)
    ports = (low + (first + i) % (high - low) for i in range(high - low))
    return next(port for port in ports if port not in taken)
