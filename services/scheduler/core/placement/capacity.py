"""What is free on machines, as the log has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from libs.events.machine import Gpu
from libs.events.replica import ShardPlacement
from libs.fit.health import usable
from services.scheduler.core.state.facts import Machine
from services.scheduler.core.state.state import State

from .power import watts_of

SYSTEM_SHARE = 0.05
SYSTEM_MOST_MB = 4096
"""Memory never given to engines: it is for the system, the agent, and what it buffers while it fetches."""


class Free(msgspec.Struct, frozen=True):
    """What of a machine nobody holds."""

    cores: int
    memory_mb: int
    gpus: tuple[Gpu, ...]
    """Those that new work may go to, by index."""
    gpus_held: int


class Capacity:
    """What is free, less what this round of decisions has already given away.

    A shard holds its room until its machine says that it is gone, whatever has been decided about it. One room
    serves for many rounds: ``begin`` forgets what a round gave away, and what was worked out about a machine holds
    until something happens there.
    """

    def __init__(self, state: State, without: frozenset[str] = frozenset()) -> None:
        """``without``: shards supposed to be gone."""
        self.state = state
        self._without = without
        self._reserved: dict[str, list[ShardPlacement]] = {}
        self._models: dict[str, Counter[str]] = {}
        self._free: dict[str, tuple[int, Free]] = {}
        self._watts: dict[str, int] | None = None

    def begin(self) -> None:
        """A new round: what the last one gave away stands in the log now, or was not done."""
        for machine_id in self._reserved:
            self._free.pop(machine_id, None)
            self.state.changed.mark(machine_id)
        self._reserved, self._models, self._watts = {}, {}, None
        if len(self._free) > len(self.state.facts.machines):
            self._free = {name: free for name, free in self._free.items() if name in self.state.facts.machines}

    def without(self, gone: Iterable[str]) -> Capacity:
        """The room there would be if these shards were gone too."""
        other = Capacity(self.state, self._without | frozenset(gone))
        other._reserved, other._models = self._reserved, self._models
        return other

    def reserve(self, model: str, shard: ShardPlacement) -> None:
        """Give a shard of a model its part of a machine, for the rest of the round."""
        self._reserved.setdefault(shard.machine_id, []).append(shard)
        self.state.changed.mark(shard.machine_id)
        self._free.pop(shard.machine_id, None)
        self._models.setdefault(model, Counter())[shard.machine_id] += 1
        self._watts = None

    def reserved_for(self, model: str) -> Counter[str]:
        """Machine id to shards of this model given room in this round."""
        return self._models.get(model, Counter())

    def counts(self, shard_id: str) -> bool:
        """Whether a shard is not supposed to be gone."""
        return shard_id not in self._without

    def holders(self, machine_id: str) -> Iterator[ShardPlacement]:
        """What holds something of a machine, or was given it in this round."""
        for shard_id, shard in self.state.held.get(machine_id, {}).items():
            if shard_id not in self._without:
                yield shard
        yield from self._reserved.get(machine_id, ())

    def free(self, machine: Machine) -> Free:
        """What of a machine nobody holds."""
        facts = machine.facts
        changed = self.state.changed.get(facts.machine_id, 0)
        known = self._free.get(facts.machine_id)
        if known is not None and known[0] == changed:
            return known[1]
        cores, memory_mb = facts.cpu_count, usable_memory_mb(facts.memory_total_mb)
        held: set[str] = set()
        for shard in self.holders(facts.machine_id):
            cores -= shard.cores
            memory_mb -= shard.memory_mb
            held.update(shard.devices)
        shared = {gpu.uuid for gpu in facts.gpus if gpu.unified_memory}
        if shared & held:
            # Its engine takes what the card has, which is the machine's memory.
            memory_mb = 0
        gpus = [_left_of(gpu, memory_mb) for gpu in facts.gpus if gpu.uuid not in held and usable(gpu)]
        gpus.sort(key=lambda gpu: gpu.index)
        free = Free(cores, memory_mb, tuple(gpus), len(held))
        self._free[facts.machine_id] = changed, free
        return free

    def rack_watts(self, rack: str) -> int:
        """What the GPUs of a rack that hold replicas may draw together."""
        if self._watts is None:
            self._watts = {}
            for machine_id, machine in self.state.facts.machines.items():
                where = rack_of(machine)
                held = {device for shard in self.holders(machine_id) for device in shard.devices}
                drawn = sum(watts_of(gpu) for gpu in machine.facts.gpus if gpu.uuid in held)
                self._watts[where] = self._watts.get(where, 0) + drawn
        return self._watts.get(rack, 0)


def _left_of(gpu: Gpu, memory_mb: int) -> Gpu:
    """A card as it can be given: one that shares the machine's memory has what others left of it."""
    if not gpu.unified_memory or memory_mb >= gpu.memory_total_mb:
        return gpu
    return msgspec.structs.replace(gpu, memory_total_mb=max(0, memory_mb))


def rack_of(machine: Machine) -> str:
    """A machine without the label is a rack of its own."""
    return machine.facts.labels.get("rack") or machine.facts.machine_id


def usable_memory_mb(total_mb: int) -> int:
    """What of a machine's main memory engines may be given."""
    return total_mb - min(int(total_mb * SYSTEM_SHARE), SYSTEM_MOST_MB)
