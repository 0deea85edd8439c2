"""What the leader hears of machines right now, as its core sees it: figures, no clock."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

LOST_AFTER_MS = 8_000
"""Four samples of two seconds: one or two late ones happen on a busy machine."""
QUIET_AFTER_MS = 5_000
"""A silence of so long is one, though it may end before the machine is lost: two samples are missing, at the least."""
RESTARTS_WITHIN_MS = 60_000
"""The same for a machine whose agent was asked to begin anew: an agent on eight cards looks at all of them first."""


class Heartbeat(msgspec.Struct, frozen=True):
    """One machine, as far as its telemetry tells."""

    silent_ms: int
    """Since its last sample, or since the leader began to listen if there was none."""
    gap_ms: int | None = None
    """How long ago the last silence of ``QUIET_AFTER_MS`` or more ended; None: there was none."""
    sampled: bool = True
    """It was heard since the leader began to listen."""
    shards: frozenset[str] = frozenset()
    """Those of which a process was there at its last sample."""
    fetching_ms: Mapping[str, int] = {}
    """Weights being fetched (their name as the machine says it): how long ago their count last moved."""
    moved_ms: Mapping[str, int] = {}
    """Shard to how long ago it last showed progress: another phase, more bytes, or memory, in steps of 16 MB."""
    disk_free_mb: int | None = None
    """Of its roomiest filesystem."""
    foreign_mb: Mapping[str, int] = {}
    """GPU UUID to memory held there by processes that are not ours."""
    foreign_holders: Mapping[str, str] = {}
    """GPU UUID to who they are: ``process 4242``."""
    starting: Mapping[str, str] = {}
    """Shard id to how far its start is: ``fetching 1.2 of 4.8 GB``."""

    @property
    def present(self) -> bool:
        """It speaks: it was heard, and not too long ago."""
        return self.sampled and self.silent_ms < LOST_AFTER_MS


Heartbeats = Mapping[str, Heartbeat]
"""By machine id. None in its place: the leader hears nothing at all, so nothing is concluded from silence."""
