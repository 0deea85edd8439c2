"""Requests and tokens a minute: a sliding window here, what the host's other workers have in theirs, and what the
gateways of other hosts say of theirs.

Counts are kept in one-second buckets and leave when the whole bucket is over a minute old, so that in no 60 seconds
more is admitted than the limit. A request is counted before it is looked at whether it fits: of two workers that count
at once at least one sees both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from .other_hosts import WORDS, OtherHosts, short
from .shared_table import (
    A_LIMIT,
    AT,
    MINUTE_S,
    NEW_REQUESTS,
    NEW_TOKENS,
    REQUESTS,
    TOKENS,
    TOLD,
    Table,
    digest,
)

Unit = Literal["requests", "tokens"]
BUCKET = 3
"""A second, and the requests and tokens of it."""


class Use(NamedTuple):
    """What was counted of a name in the last minute, everywhere, as far as it is known here."""

    requests: int
    tokens: int
    new_requests: int
    """Of this host, and other hosts may not have heard it."""
    new_tokens: int


class Tally:
    """What this worker counted of a name in the last minute."""

    __slots__ = (
        *("_added_requests", "_added_tokens", "_buckets", "_heard_requests", "_heard_tokens", "_row", "changed"),
        *("digest", "requests", "said", "tokens"),
    )

    def __init__(self, name: str, table: Table, now: float, said: tuple[int, int] = (0, 0)) -> None:
        """``said``: at least what an earlier tally of the name had told."""
        self.digest = digest(name)
        self._row = row = table.row(self.digest)
        self.requests = self.tokens = 0
        self._buckets: list[int] = []
        self._added_requests, self._added_tokens = said
        """What was ever counted."""
        self._heard_requests, self._heard_tokens = said
        """Of that, what other hosts have heard."""
        self.said = said
        """Of that, what they were told."""
        self.changed = True
        words = table.words
        if int(now) - words[row + AT] < MINUTE_S and words[row + TOLD] == A_LIMIT:
            # Of this worker's life before this one.
            self.requests, self.tokens = words[row + REQUESTS], words[row + TOKENS]
            self._added_requests += self.requests
            self._added_tokens += self.tokens
            self._buckets = [words[row + AT], self.requests, self.tokens]
        words[row + TOLD] = A_LIMIT

    def add(self, table: Table, now: float, requests: int, tokens: int) -> None:
        """Count requests and tokens in the second of ``now``."""
        second = int(now)
        buckets = self._buckets
        if buckets and buckets[0] <= second - MINUTE_S:
            self._drop(second)
        if buckets and buckets[-BUCKET] == second:
            buckets[-2] += requests
            buckets[-1] += tokens
        else:
            buckets += (second, requests, tokens)
        self.requests += requests
        self.tokens += tokens
        self._added_requests += requests
        self._added_tokens += tokens
        self.changed = True
        self._show(table, second)

    def turn(self, table: Table, now: float) -> None:
        """What is over a minute old leaves; the other workers of the host see how it is at a time that never falls."""
        second = int(now)
        if self._buckets and self._buckets[0] <= second - MINUTE_S:
            self._drop(second)
        self._show(table, second)

    def _drop(self, second: int) -> None:
        buckets = self._buckets
        gone = 0
        while gone < len(buckets) and buckets[gone] <= second - MINUTE_S:
            self.requests -= buckets[gone + 1]
            self.tokens -= buckets[gone + 2]
            gone += BUCKET
        del buckets[:gone]
        self.changed = True

    def _show(self, table: Table, second: int) -> None:
        words, row = table.words, self._row
        words[row + REQUESTS] = self.requests
        words[row + TOKENS] = self.tokens
        words[row + NEW_REQUESTS] = self.new_requests
        words[row + NEW_TOKENS] = self.new_tokens
        words[row + AT] = second

    @property
    def new_requests(self) -> int:
        """Of those that are counted, what other hosts have not heard."""
        new = self._added_requests - self._heard_requests
        return new if 0 <= new <= self.requests else max(0, min(new, self.requests))

    @property
    def new_tokens(self) -> int:
        """Of those that are counted, what other hosts have not heard."""
        new = self._added_tokens - self._heard_tokens
        return new if 0 <= new <= self.tokens else max(0, min(new, self.tokens))

    def say(self) -> tuple[int, int]:
        """Requests and tokens, for others to hear."""
        self.changed = False
        self.said = self._added_requests, self._added_tokens
        return self.requests, self.tokens

    def heard(self, said: tuple[int, int]) -> None:
        """Other hosts have heard what was ``said``."""
        self._heard_requests = max(self._heard_requests, said[0])
        self._heard_tokens = max(self._heard_tokens, said[1])

    @property
    def empty(self) -> bool:
        """Whether nothing was counted in the last minute."""
        return not self._buckets

    def frees(self, now: float, unit: Unit, amount: int) -> float:
        """Seconds until ``amount`` of what is counted has left; a minute when it is not here."""
        offset = 1 if unit == "requests" else 2
        for at in range(0, len(self._buckets), BUCKET):
            amount -= self._buckets[at + offset]
            if amount <= 0:
                return self._buckets[at] + MINUTE_S - now
        return 60.0


class Counts:
    """Requests and tokens by name: a key id, or a project's path. ``now`` is in seconds and never falls."""

    def __init__(self, table: Table, other_hosts: OtherHosts) -> None:
        self._table = table
        self._other_hosts = other_hosts
        self._tallies: dict[str, Tally] = {}
        self._said = (0, 0)
        """The most that one of those said which are gone: that others heard it may be known only after another of the
        same name has begun."""

    def add(self, name: str, now: float, requests: int = 0, tokens: int = 0) -> None:
        """Raises TableFull."""
        tally = self._tallies.get(name)
        if tally is None:
            tally = self._tallies[name] = Tally(name, self._table, now, self._said)
        tally.add(self._table, now, requests, tokens)

    def used(self, name: str, now: float) -> Use:
        """In the whole cluster, as far as it is known here."""
        tally = self._tallies.get(name)
        requests = tokens = new_requests = new_tokens = 0
        if tally is None:
            hashed = digest(name)
        else:
            tally.turn(self._table, now)
            hashed = tally.digest
            requests, tokens = tally.requests, tally.tokens
            new_requests, new_tokens = tally.new_requests, tally.new_tokens
        since = int(now) - MINUTE_S
        for words, row in self._table.rows_of_others(hashed):
            if words[row + AT] > since:
                requests += words[row + REQUESTS]
                tokens += words[row + TOKENS]
                new_requests += words[row + NEW_REQUESTS]
                new_tokens += words[row + NEW_TOKENS]
        records = self._other_hosts.counts.of(short(name))
        for at in range(0, len(records), WORDS):
            requests += records[at + 1]
            tokens += records[at + 2]
        return Use(requests, tokens, new_requests, new_tokens)

    def frees(self, name: str, now: float, unit: Unit, amount: int) -> float:
        """See ``Tally.frees``."""
        tally = self._tallies.get(name)
        return 60.0 if tally is None else tally.frees(now, unit, amount)

    def sweep(self, now: float) -> None:
        """What is over a minute old leaves, for the other workers too; to be called every second."""
        for name, tally in list(self._tallies.items()):
            tally.turn(self._table, now)
            if tally.empty and not tally.changed:
                self._said = max(self._said[0], tally.said[0]), max(self._said[1], tally.said[1])
                del self._tallies[name]

    def whole(self) -> dict[str, tuple[int, int]]:
        """Requests and tokens of everything that is counted here."""
        return {name: tally.say() for name, tally in self._tallies.items() if not tally.empty or tally.changed}

    def changes(self) -> dict[str, tuple[int, int]]:
        """Of what was not told since it changed."""
        return {name: tally.say() for name, tally in self._tallies.items() if tally.changed}

    def said(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """What of these was told last, as ``heard`` takes it."""
        return {name: tally.said for name in names if (tally := self._tallies.get(name)) is not None}

    def heard(self, said: Mapping[str, tuple[int, int]]) -> None:
        """Other hosts have heard it."""
        for name, figures in said.items():
            if (tally := self._tallies.get(name)) is not None:
                tally.heard(figures)
