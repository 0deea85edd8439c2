"""The views accounting writes: ``keys`` and ``prices`` from the log, ``spend`` from the ledger."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from datetime import UTC, datetime

from libs.bus import BusAway, Overtaken, OwnedView
from libs.events import Event
from libs.events.leadership import AccountingElected
from libs.events.tenancy import (
    KeyChanged,
    KeyCreated,
    KeyForgotten,
    KeyRevoked,
    OrgDefined,
    OrgRemoved,
    PriceDefined,
    ProjectDefined,
    ProjectRemoved,
    TeamDefined,
    TeamRemoved,
)
from libs.events.views import KeyView, PriceView, Spend

from .core.effective import key_view, of_project, same
from .core.narrowing import Effective
from .core.spending import holds, rises
from .core.state import State

log = logging.getLogger("llmgw.accounting")

AT_ONCE = 64
"""Entries written to a bucket at a time."""

PUBLISH_EVERY_S = 0.5
"""Spend is published this often at most, and only where it rose."""
PRUNE_EVERY_S = 3600.0
LOOKED_AT = 1000
"""Entries looked at in one turn of the loop."""


class Keys:
    """Bucket ``keys``. Works out and writes what events changed, and nothing else.

    Only a leader that takes the bucket over looks at every key. A level that changed changes all keys below it.
    """

    def __init__(self, view: OwnedView[KeyView]) -> None:
        self._view = view
        self._due: set[str] = set()
        """Ids of keys whose entries may not say what the log says."""
        self._gone: set[str] = set()
        """SHA-256 of keys that may have no entry any more."""
        self._projects: dict[str, Effective] = {}

    def note(self, state: State, event: Event) -> None:
        """An event is about to be folded into ``state``."""
        match event:
            case KeyCreated() | KeyChanged() | KeyRevoked():
                self._due.add(event.key_id)
            case KeyForgotten():
                self._gone |= {state.keys[key_id].key_sha256 for key_id in event.key_ids if key_id in state.keys}
            case OrgDefined() | OrgRemoved():
                self._level(state, f"{event.org}/")
            case TeamDefined() | TeamRemoved():
                self._level(state, f"{event.team}/")
            case ProjectDefined() | ProjectRemoved():
                self._projects.pop(event.project, None)
                self._due |= state.members.get(event.project, set())

    def _level(self, state: State, above: str) -> None:
        self._projects.clear()
        for project, key_ids in state.members.items():
            if project.startswith(above):
                self._due |= key_ids

    async def refresh(self, state: State, position: int) -> None:
        """Make the bucket say what ``state`` says. Raises BusAway; then it is to be called again."""
        if await self._view.take_over(state.elected_at):
            self._projects.clear()
            self._due = set(state.keys)
            # Of a log that is no more, or written by hand.
            self._gone = self._view.values.keys() - state.key_ids.keys()
        await _each(self._due, lambda key_id: self._write(state, key_id, position))
        await _each(self._gone, lambda key_sha256: self._delete(state, key_sha256))

    def _write(self, state: State, key_id: str, position: int) -> Coroutine[None, None, None] | None:
        key = state.keys.get(key_id)
        if key is None:
            return None
        project = self._projects.get(key.project)
        if project is None:
            project = self._projects[key.project] = of_project(state, key.project)
        view = key_view(key, project, position)
        return None if same(self._view.values.get(key.key_sha256), view) else self._view.put(key.key_sha256, view)

    def _delete(self, state: State, key_sha256: str) -> Coroutine[None, None, None] | None:
        there = key_sha256 in self._view.values and key_sha256 not in state.key_ids
        return self._view.delete(key_sha256) if there else None


class PriceList:
    """Bucket ``prices``: the newest price of every model."""

    def __init__(self, view: OwnedView[PriceView]) -> None:
        self._view = view
        self._changed = True

    def note(self, event: Event) -> None:
        """An event is about to be folded."""
        if isinstance(event, PriceDefined | AccountingElected):
            self._changed = True

    async def refresh(self, state: State) -> None:
        """Make the bucket say what ``state`` says. Raises BusAway; then it is to be called again."""
        if not self._changed:
            return
        self._changed = False
        newest = {model: versions[-1] for model, versions in state.prices.items()}
        wanted = {model: PriceView(price=one.price, version=one.version) for model, one in newest.items()}
        try:
            await self._view.become(wanted, state.elected_at)
        except BaseException:
            self._changed = True
            raise


class SpendPublisher:
    """Bucket ``spend``. Collects what rose and publishes it twice a second.

    An account nobody has any more leaves the bucket when the periods its entry speaks of are over.
    """

    def __init__(self, view: OwnedView[Spend], charges: Callable[[str], bool], election: Callable[[], int]) -> None:
        """``charges``: whether there is a level or key an account belongs to; ``election``: sequence of the newest."""
        self._view = view
        self._election = election
        self._charges = charges
        self._due: dict[str, Spend] = {}
        self.new: set[str] = set()
        """Accounts that came to be: the ledger may have sums of a level that was called the same."""

    @property
    def owned(self) -> bool:
        """Whether the bucket is this one's to write; not any more after somebody else wrote it."""
        return self._view.owned

    def note(self, event: Event) -> None:
        """An event is about to be folded."""
        match event:
            case OrgDefined():
                self.new.add(f"{event.org}/*")
            case TeamDefined():
                self.new.add(f"{event.team}/*")
            case ProjectDefined():
                self.new.add(event.project)

    async def take_over(self) -> None:
        """Learn what stands in the bucket, as its writer from now on. Raises BusAway, TimeoutError."""
        if await self._view.take_over(self._election()):
            self._due.clear()

    def let_go(self) -> None:
        """Publish no more: another instance writes the bucket now."""
        self._due.clear()
        self._view.let_go()

    @property
    def published(self) -> Collection[Spend]:
        """What stands in the bucket."""
        return self._view.values.values()

    def counted(self, account: str, epoch: str) -> int:
        """How many requests of an account are published, or about to be, with a sequence of an epoch."""
        spend = self._due.get(account) or self._view.values.get(account)
        return spend.counted if spend is not None and spend.epoch == epoch else 0

    def add(self, sums: Iterable[Spend], at: datetime) -> None:
        """Sums as the ledger had them at a time. Those that are no news are dropped."""
        for spend in sums:
            known = self._due.get(spend.key_id) or self._view.values.get(spend.key_id)
            if rises(known, spend) and (self._charges(spend.key_id) or holds(spend, at)):
                self._due[spend.key_id] = spend

    async def prune(self, at: datetime) -> None:
        """Delete entries of accounts nobody has any more. Raises Overtaken, BusAway."""
        for number, account in enumerate(list(self._view.values)):
            if number % LOOKED_AT == 0:
                # Looking through many must not hold up everybody else.
                await asyncio.sleep(0)
            spend = self._view.values.get(account)
            if self.owned and spend is not None and not self._charges(account) and not holds(spend, at):
                await self._view.delete(account)

    async def run(self) -> None:
        """Publish, for ever."""
        pruned = time.monotonic() - PRUNE_EVERY_S
        while True:
            await asyncio.sleep(PUBLISH_EVERY_S)
            if not self.owned:
                continue
            try:
                await self._publish()
                if time.monotonic() - pruned > PRUNE_EVERY_S:
                    pruned = time.monotonic()
                    await self.prune(datetime.now(UTC))
            except Overtaken as why:
                log.warning("spend was published elsewhere: %s", why)
            except BusAway as why:
                log.info("spend waits: %s", why)

    async def _publish(self) -> None:
        due = list(self._due)
        for start in range(0, len(due), AT_ONCE):
            await asyncio.gather(*map(self._write, due[start : start + AT_ONCE]))

    async def _write(self, key_id: str) -> None:
        spend = self._due.get(key_id)
        if spend is None:
            return
        await self._view.put(key_id, spend)
        if self._due.get(key_id) is spend:
            del self._due[key_id]


async def _each(due: set[str], write: Callable[[str], Coroutine[None, None, None] | None]) -> None:
    """Write what is due, some at a time, and take it out of ``due``; others may add to it meanwhile.

    ``write`` returns nothing where there is nothing to write. What fails is due again.
    """
    while due:
        some = [due.pop() for _ in range(min(AT_ONCE, len(due)))]
        writes = [one for one in map(write, some) if one is not None]
        try:
            if writes:
                await asyncio.gather(*writes)
            else:
                # Looking through many keys must not hold up everybody else.
                await asyncio.sleep(0)
        except BaseException:
            due.update(some)
            raise
