"""What happens to a cluster, and when: all of it follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

QUIET_S = 6.0
"""Nothing happens at the beginning, so that load is there to be hurt; nor at the end."""
GAP_S = (2.0, 9.0)
"""Between two blows, or groups of them."""
FREEZES_S = ((0.3, 3.0), (3.0, 12.0), (12.0, 25.0))
"""Shorter than any lease, about as long as one, longer than the grace of a node and of a gateway."""

SERVERS = ("nats", "postgres")
SERVICES = ("scheduler", "accounting", "guard", "mirror", "gateway")
WORKERS = ("gateway worker 0", "gateway worker 1")
ENGINES = ("engine 0", "engine 1", "engine 2")


class Blow(NamedTuple):
    """Something done to one part."""

    at_s: float
    """Since the load began."""
    what: Literal["kill", "freeze"]
    part: str
    for_s: float = 0.0
    """How long it stays frozen."""

    def __str__(self) -> str:
        lasting = f" for {self.for_s:.1f} s" if self.for_s else ""
        return f"{self.at_s:6.1f} s  {self.what} {self.part}{lasting}"


def parts(agents: Sequence[str]) -> tuple[str, ...]:
    """Everything that can be hit, in a cluster with these node agents."""
    return (*SERVERS, *SERVICES, *WORKERS, *agents, *ENGINES)


def story(seed: int, seconds: float, agents: Sequence[str]) -> list[Blow]:
    """The blows of a seed, in order; three times in ten several fall together. None ends after ``seconds``."""
    chance = random.Random(seed)
    hit = parts(agents)
    blows: list[Blow] = []
    frozen: dict[str, float] = {}
    """Until when: what is frozen is not frozen again."""
    at = QUIET_S
    while at < seconds - QUIET_S:
        for part in chance.sample(hit, chance.choices((1, 2, 3), (70, 20, 10))[0]):
            shortest, longest = chance.choices(FREEZES_S, (40, 40, 20))[0]
            for_s = min(chance.uniform(shortest, longest), seconds - at)
            if chance.random() < 0.45:
                blows.append(Blow(at, "kill", part))
            elif frozen.get(part, 0.0) < at:
                frozen[part] = at + for_s
                blows.append(Blow(at, "freeze", part, for_s))
        at += chance.uniform(*GAP_S)
    return blows
