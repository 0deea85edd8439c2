"""How many replicas may be starting at once: what starts takes disk, network and CPU from what serves, and a site that
has too little of them gets nothing up at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

from services.scheduler.core.state.state import State

AT_ONCE_LEAST = 32
AT_ONCE_SHARE = 0.25
"""Of the machines there are: a fleet fills in a few waves, and its mirrors serve a few hundred at once."""
ON_ONE_MACHINE = 4
"""Or as many as it has GPUs: no more fit there, and one beside the other they would break up other machines."""
COUNTS_FOR = timedelta(minutes=5)
"""A start that takes longer waits for its weights, and is in nobody's way."""


class Starts:
    """Those under way, and those a round of decisions has added."""

    def __init__(self, state: State, now: datetime, at_once: int) -> None:
        self._machines = state.facts.machines
        self._most = at_once or max(AT_ONCE_LEAST, int(AT_ONCE_SHARE * len(self._machines)))
        self._count = 0
        self._on: Counter[str] = Counter()
        for replica in state.starting.values():
            if now - replica.since < COUNTS_FOR:
                self.add(replica.machines)

    def add(self, machines: Iterable[str]) -> None:
        """Another begins, on these machines."""
        self._count += 1
        self._on.update(machines)

    @property
    def full(self) -> bool:
        """No other may begin, wherever."""
        return self._count >= self._most

    def full_on(self, machines: Iterable[str]) -> bool:
        """No other may begin on one of these machines."""
        return any(self._on[m] >= max(ON_ONE_MACHINE, len(self._machines[m].facts.gpus)) for m in machines)
