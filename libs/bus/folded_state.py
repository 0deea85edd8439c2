"""A service's state as its log makes it, kept on disk, so that a start reads the end of the log only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from libs.events import Event

from .bus import Bus
from .delivery import Delivery
from .follow import Follower, gone_back
from .metrics import WENT_BACK
from .snapshot import Snapshot
from .transport import BusError, RawMessage

log = logging.getLogger("llmgw.bus")

S = TypeVar("S")
REMEMBER = timedelta(hours=2)
"""A command may be redelivered while it is in its stream (one hour); the server's own memory is two minutes."""
SNAPSHOT_EVERY = 5000
"""Events after which the state is kept on disk: a start then reads little more than so many."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The event a command caused."""

    at: datetime
    tag: str
    sequence: int


class FoldedState(Generic[S]):
    """Follows the log into a state, for as long as the log can be read and is the same.

    ``evolve(state, event, position)`` folds one event and returns the state.
    ``owns`` are the aggregates only this service writes. One of their messages that cannot be read, for its tag or for
    what it holds, was written by a newer version: nothing is folded beyond it, as the state would be a wrong one.
    ``on_event(delivery)`` is called after an event was folded; ``on_unusable(why)`` once when none is any more.
    """

    def __init__(
        self,
        bus: Bus,
        service: str,
        *,
        subjects: Sequence[str],
        owns: Sequence[str],
        initial: S,
        evolve: Callable[[S, Event, int], S],
        snapshot: Snapshot[S] | None,
        on_event: Callable[[Delivery], None],
        on_unusable: Callable[[str], None],
    ) -> None:
        self._bus = bus
        self._service = service
        self._subjects = tuple(subjects)
        self._owns = frozenset(owns)
        self._evolve = evolve
        self._snapshot = snapshot
        self._on_event = on_event
        self._on_unusable = on_unusable
        self._follower: Follower | None = None
        self._stream = ""
        self._saved = 0
        self._mark = ""
        self._writing: asyncio.Task[None] | None = None
        self._readable_to = 0
        self.value: S = initial
        self.applied: dict[str, Applied] = {}
        """Commands carried out in the last two hours, by their ids."""
        self.unreadable = ""
        """The log holds something of ours that this version cannot read, as a sentence that says what to do."""
        self.void = ""
        """The log is not the one that was folded: the process is to begin anew."""

    @property
    def position(self) -> int:
        """Sequence of the last message that was folded, or that says nothing to the state."""
        if self.unreadable:
            return self._readable_to
        return self._follower.position if self._follower is not None else 0

    @property
    def known(self) -> bool:
        """Whether the log was read to its end once."""
        return self._follower is not None and self._follower.caught_up.is_set()

    @property
    def sure(self) -> bool:
        """Whether the log is known to be the one that was folded; see ``Follower.sure``."""
        return self._follower is not None and self._follower.sure and not self.void

    @property
    def dropped(self) -> str:
        """That a snapshot was dropped in the last week and why, as a sentence; empty: none was."""
        return self._snapshot.dropped(datetime.now(UTC)) if self._snapshot is not None else ""

    async def start(self) -> None:
        """Begin with the snapshot, where there is one that may be used, and follow the log from there."""
        start = await self._restore(self._snapshot) if self._snapshot is not None else 0
        self._follower = await self._bus.follow(
            "EVENTS", self._subjects, self._fold, start=start, on_unread=self._unread, begin_anew=self._went_back
        )

    async def until_known(self) -> None:
        """Wait until the log was read to its end."""
        assert self._follower is not None
        await self._follower.caught_up.wait()

    async def reached(self, sequence: int) -> None:
        """Wait until the message with this sequence has been folded. Raises TimeoutError after 15 s."""
        assert self._follower is not None
        await self._follower.reached(sequence)

    async def stop(self) -> None:
        """Follow no more, and keep what was folded."""
        if self._follower is None:
            return
        await self._follower.stop()
        await self._written()
        self._save(self.position)
        await self._written()

    async def _written(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _restore(self, snapshot: Snapshot[S]) -> int:
        """Returns the sequence up to which the snapshot is folded; 0: there is none that may be used."""
        try:
            extent = await self._bus.transport.extent("EVENTS")
            self._stream = extent.epoch
            place = snapshot.place()
            why_not = await gone_back(self._bus.transport, "EVENTS", place, extent) if place is not None else ""
        except BusError as why:
            log.warning("%s reads the log from its beginning, and keeps no snapshot: %s", self._service, why)
            return 0
        if why_not:
            WENT_BACK.labels("EVENTS").inc()
            log.error("%s reads the log from its beginning: %s", self._service, why_not)
            snapshot.drop(why_not, datetime.now(UTC))
            return 0
        kept = snapshot.load(extent.epoch, extent.last)
        if kept is None:
            return 0
        self.value, self._saved, self._mark = kept.state, kept.position, kept.mark
        self.applied = {cause: Applied(*about) for cause, about in kept.applied.items()}
        log.info("%s begins with its snapshot, which holds the log up to sequence %d", self._service, self._saved)
        return self._saved

    def _save(self, position: int) -> None:
        """``position`` is the sequence of the last event the state holds. The disk is waited for elsewhere."""
        busy = self._writing is not None and not self._writing.done()
        if self._snapshot is None or position <= self._saved or not self._stream or busy:
            return
        if self.unreadable or self.void:
            return
        applied = {cause: (a.at, a.tag, a.sequence) for cause, a in self.applied.items()}
        data = self._snapshot.packed(self._stream, position, self._mark, self.value, applied)
        self._writing = asyncio.create_task(asyncio.to_thread(self._snapshot.write, data), name="snapshot")
        self._saved = position

    async def _fold(self, delivery: Delivery) -> None:
        if self.unreadable:
            return
        event = delivery.message
        assert isinstance(event, Event)
        self.value = self._evolve(self.value, event, delivery.sequence)
        self._mark = delivery.raw.mark
        if delivery.cause.startswith("c-"):
            self._remember(delivery)
        self._on_event(delivery)
        # Not while a long log is read for the first time: that would write all of it many times over.
        if self.known and delivery.sequence - self._saved >= SNAPSHOT_EVERY:
            self._save(delivery.sequence)

    def _remember(self, delivery: Delivery) -> None:
        self.applied[delivery.cause] = Applied(delivery.time, delivery.tag, delivery.sequence)
        for cause, applied in list(self.applied.items()):
            if delivery.time - applied.at <= REMEMBER:
                break
            del self.applied[cause]

    async def _unread(self, raw: RawMessage, why: str) -> None:
        if self.unreadable:
            return
        if raw.subject.split(".")[2] not in self._owns:
            self._mark = raw.mark
            return
        self._readable_to = self.position
        self.unreadable = (
            f"the log holds {raw.subject} at {raw.sequence}, which this version cannot read ({why}): "
            f"start a {self._service} as new as the one that wrote it"
        )
        log.error("%s cannot lead: %s", self._service, self.unreadable)
        self._on_unusable(self.unreadable)

    def _went_back(self, why: str) -> None:
        self.void = f"{why}; beginning anew"
        self._on_unusable(self.void)
        if self._snapshot is not None:
            self._snapshot.drop(why, datetime.now(UTC))
        self._bus.begin_anew(why)
