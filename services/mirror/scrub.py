"""Looking after the copies: files are read again now and then, and what is missing is copied from another mirror."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from prometheus_client import Counter

from libs.events.library import WeightFile

from .adapters.intake import MARGIN_BYTES, GivenUp, shown
from .adapters.peers import PeerFailed, fetch
from .adapters.store import Store, WrongSum
from .library import Library

log = logging.getLogger("llmgw.mirror")

LOOK_EVERY_S = 30.0
"""How often it is looked whether another mirror has what is missing here."""
READ_EVERY_S = 7 * 24 * 3600.0
"""A file is read again after so long: disks forget."""
READ_BYTES_PER_S = 50 * 1000 * 1000
"""Beside what nodes fetch."""
FIRST_AFTER_S = 600.0

DAMAGED = Counter("llmgw_mirror_damaged_files_total", "Copies found to be no more what they were.", ["found_by"])
COPIED = Counter("llmgw_mirror_copied_files_total", "Files asked of other mirrors, by what came of it.", ["outcome"])


class Scrubber:
    """Two tasks, ``scrub`` and ``repair``; both go on for ever."""

    def __init__(self, store: Store, library: Library, others: Callable[[], list[str]]) -> None:
        """``others``: the addresses of the other mirrors."""
        self._store = store
        self._library = library
        self._others = others
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._read_at: dict[str, float] = {}

    def damaged(self, file: WeightFile, found_by: str) -> None:
        """A copy was found damaged, and set aside. May be called from any thread."""
        DAMAGED.labels(found_by).inc()
        log.error(
            "the copy of %s (SHA-256 %s) here is damaged and was set aside, found by %s: is the disk sound?",
            *(self._library.name_of(file), file.sha256, found_by),
        )
        self._loop.call_soon_threadsafe(self._library.changed)

    async def scrub(self) -> None:
        """Read every file now and then, slowly."""
        await asyncio.sleep(FIRST_AFTER_S)
        while True:
            files = self._library.served.files
            self._read_at = {sha256: at for sha256, at in self._read_at.items() if sha256 in files}
            before = time.monotonic() - READ_EVERY_S
            for file in [each for each in files.values() if self._read_at.get(each.sha256, before) <= before]:
                await self.check(file)
            await asyncio.sleep(LOOK_EVERY_S)

    async def check(self, file: WeightFile) -> None:
        """Read a file and see whether it is right."""
        self._read_at[file.sha256] = time.monotonic()
        try:
            right = await asyncio.to_thread(self._store.intact, file.sha256, self._slowly)
        except FileNotFoundError:
            self._library.changed()
        except GivenUp:
            return
        except OSError as error:
            log.error("%s cannot be read: %s", self._library.name_of(file), error)
        else:
            if not right:
                self.damaged(file, "reading it again")

    def _slowly(self, count: int) -> None:
        if self._stopping.wait(count / READ_BYTES_PER_S):
            raise GivenUp

    async def repair(self) -> None:
        """Copy what is missing here from mirrors that have it."""
        while True:
            for file in list(self._library.served.wanted.values()):
                await self._copied(file)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _copied(self, file: WeightFile) -> None:
        name = self._library.name_of(file)
        if file.size_bytes > self._store.free_bytes() - MARGIN_BYTES:
            log.warning("%s is not copied from another mirror: %s do not fit the disk", name, shown(file.size_bytes))
            return
        for url in self._others():
            try:
                await asyncio.to_thread(partial(fetch, url, file, self._store, self._unless_stopping))
            except GivenUp:
                return
            except WrongSum as wrong:
                COPIED.labels("damaged").inc()
                log.error("%s came damaged from the mirror at %s: %s", name, url, wrong)
            except (PeerFailed, OSError) as why:
                COPIED.labels("failed").inc()
                log.info("%s could not be copied from the mirror at %s: %s", name, url, why)
            else:
                COPIED.labels("copied").inc()
                log.info("%s was copied from the mirror at %s", name, url)
                self._library.changed()
                return

    def _unless_stopping(self, count: int) -> None:
        if self._stopping.is_set():
            raise GivenUp

    def stop(self) -> None:
        """Have reading and copying end, in their threads too."""
        self._stopping.set()
