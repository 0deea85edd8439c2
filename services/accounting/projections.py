"""The views accounting writes: ``keys`` and ``prices`` from the log, ``spend`` from the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from libs.bus import BusAway, Overtaken, OwnedView
from libs.events.views import KeyView, PriceView, Spend

from .core.effective import key_view, of_project, same
from .core.narrowing import Effective
from .core.spending import rises
from .core.state import Key, State

log = logging.getLogger("llmgw.accounting")

T = TypeVar("T")

AT_ONCE = 64
"""Entries written to a bucket at a time."""

PUBLISH_EVERY_S = 0.5
"""Spend is published this often at most, and only where it rose."""


class Keys:
    """Bucket ``keys``. Writes what changed, and nothing else."""

    def __init__(self, view: OwnedView[KeyView]) -> None:
        self._view = view
        self._bases: dict[str, tuple[Key, Effective]] = {}
        """SHA-256 of a key to what its entry was made of: where that is unchanged, nothing is worked out."""
        self._taken_at = -1

    async def refresh(self, state: State, position: int) -> None:
        """Make the bucket say what ``state`` says. Raises BusAway; then it is to be called again."""
        if state.elected_at != self._taken_at:
            self._bases.clear()
            await self._view.take()
            self._taken_at = state.elected_at
        try:
            for some in _parts(self._changed(state, position)):
                await asyncio.gather(*(self._write(key, view, basis) for key, view, basis in some))
            for key_sha256 in self._view.values.keys() - state.key_ids.keys():
                # Of a log that is no more, or written by hand.
                await self._view.delete(key_sha256)
        except Overtaken as why:
            # By hand, or by a leader we have not heard of yet: take it over again, if we still lead then.
            self._taken_at = -1
            raise BusAway(str(why)) from None

    def _changed(self, state: State, position: int) -> list[tuple[str, KeyView, tuple[Key, Effective]]]:
        changed = []
        projects: dict[str, Effective] = {}
        for key in state.keys.values():
            project = projects.get(key.project)
            if project is None:
                project = projects[key.project] = of_project(state, key.project)
            basis = self._bases.get(key.key_sha256)
            if basis is not None and basis[0] is key and basis[1] == project:
                continue
            view = key_view(key, project, position)
            if same(self._view.values.get(key.key_sha256), view):
                self._bases[key.key_sha256] = (key, project)
            else:
                changed.append((key.key_sha256, view, (key, project)))
        return changed

    async def _write(self, key_sha256: str, view: KeyView, basis: tuple[Key, Effective]) -> None:
        await self._view.put(key_sha256, view)
        self._bases[key_sha256] = basis


class PriceList:
    """Bucket ``prices``: the newest price of every model."""

    def __init__(self, view: OwnedView[PriceView]) -> None:
        self._view = view

    async def refresh(self, state: State, position: int) -> None:
        """Make the bucket say what ``state`` says. Raises BusAway; then it is to be called again."""
        newest = {model: versions[-1] for model, versions in state.prices.items()}
        wanted = {model: PriceView(price=one.price, version=one.version) for model, one in newest.items()}
        await self._view.become(wanted, state.elected_at)


class SpendPublisher:
    """Bucket ``spend``. Collects what rose and publishes it twice a second."""

    def __init__(self, view: OwnedView[Spend]) -> None:
        self._view = view
        self._due: dict[str, Spend] = {}
        self.overtaken = False
        """Somebody else wrote the bucket: before this one writes it again it must take it over."""

    async def take(self) -> None:
        """Learn what stands in the bucket, as its writer from now on. Raises TimeoutError."""
        self._due.clear()
        await self._view.take()
        self.overtaken = False

    def forget(self) -> None:
        """Publish no more: another instance writes the bucket now."""
        self._due.clear()

    def add(self, sums: Iterable[Spend]) -> None:
        """Sums as the ledger has them. Those that are no news are dropped."""
        for spend in sums:
            if rises(self._due.get(spend.key_id) or self._view.values.get(spend.key_id), spend):
                self._due[spend.key_id] = spend

    async def run(self) -> None:
        """Publish, for ever."""
        while True:
            await asyncio.sleep(PUBLISH_EVERY_S)
            if self.overtaken:
                continue
            try:
                await self._publish()
            except BusAway as why:
                log.info("spend waits: %s", why)
            except Overtaken as why:
                log.warning("spend was published elsewhere: %s", why)
                self.overtaken = True

    async def _publish(self) -> None:
        for some in _parts(list(self._due)):
            await asyncio.gather(*map(self._write, some))

    async def _write(self, key_id: str) -> None:
        spend = self._due.get(key_id)
        if spend is None:
            return
        await self._view.put(key_id, spend)
        if self._due.get(key_id) is spend:
            del self._due[key_id]


def _parts(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(whole), AT_ONCE):
        yield whole[start : start + AT_ONCE]
