"""What gateways do right now, as the core sees it: figures over windows, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import datetime

import msgspec

from libs.events.model import Adapter

SHORT_MS = 30_000
"""More is decided on this: long enough that one burst is not a trend, short enough that people still wait."""
PACES_LEAST = 20
"""Requests whose pace was measured, from which on a replica's pace says something."""
ANSWERS_WITHIN_MS = 5_000
"""An engine that answered so lately is there, whatever became of its machine's agent."""
UNANSWERED_LEAST = 3
"""As many as open a gateway's breaker."""
LONG_MS = 300_000
"""Less is decided on this: a start costs minutes."""


class ReplicaUse(msgspec.Struct, frozen=True):
    """One replica, as all gateways saw it."""

    in_flight: int = 0
    """At all gateways, now."""
    busy_short: float = 0.0
    """In flight on average over the short window, and below over the long one."""
    busy_long: float = 0.0
    ttft_ms: float | None = None
    """Average time to the first token over the short window; None: there was none."""
    requests: int = 0
    """Finished since it was first heard of."""
    failed: int = 0
    """Those of them in which the engine failed."""
    paces: int = 0
    """Requests whose pace could be measured: streamed to the end, with tokens enough."""
    tokens_per_s: float | None = None
    """The pace of the ninth of ten of the last of them, from the first token to the last."""
    first_tokens: int = 0
    first_tokens_ms: float = 0.0
    answered_ms: int | None = None
    """How long ago it was last heard that the engine answered; None: never."""
    unanswered: int = 0
    """Requests in a row in which the engine failed, since it last answered."""


class ModelUse(msgspec.Struct, frozen=True):
    """One model, as all gateways saw it."""

    last_used: datetime | None = None
    """The latest over all gateways."""
    waiting: int = 0
    """In gateways, for any replica."""
    waiting_short: float = 0.0
    waiting_long: float = 0.0


class Traffic(msgspec.Struct, frozen=True):
    """None in its place: the leader hears no gateway, so nothing is concluded from silence."""

    listening_ms: int
    """For so long everything was heard: no window covers more."""
    replicas: Mapping[str, ReplicaUse] = {}
    models: Mapping[str, ModelUse] = {}
    paced: Set[str] = frozenset()
    """Replicas of which the pace of ``PACES_LEAST`` requests was measured."""

    def of(self, replica_id: str) -> ReplicaUse:
        """One replica; of one that nobody uses all is 0."""
        return self.replicas.get(replica_id, _NO_REPLICA_USE)

    def of_model(self, model: str, loras: tuple[Adapter, ...] = ()) -> ModelUse:
        """With what is asked of its fine-tunings, which gateways tell by their own names."""
        use = self.models.get(model, _NO_MODEL_USE)
        for lora in loras:
            use = _both(use, self.models.get(lora.name, _NO_MODEL_USE))
        return use


def _both(first: ModelUse, second: ModelUse) -> ModelUse:
    used = [at for at in (first.last_used, second.last_used) if at is not None]
    return ModelUse(
        last_used=max(used, default=None),
        waiting=first.waiting + second.waiting,
        waiting_short=first.waiting_short + second.waiting_short,
        waiting_long=first.waiting_long + second.waiting_long,
    )


_NO_REPLICA_USE = ReplicaUse()
_NO_MODEL_USE = ModelUse()
