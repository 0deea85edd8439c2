"""The mirror's own copies: brought in by imports, deleted after removals, laid out for whoever fetches."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from libs.events import Event
from libs.events.library import ImportEnded, LibraryVersion, VersionAdded, WeightFile
from libs.runtime.clock import utc_now

from .adapters.intake import Intake, Progress, shown
from .adapters.served_files import ServedFiles, inventory
from .adapters.store import Store
from .core.manifest import version_of
from .core.source import parse_source
from .core.state import Import, State
from .headers import headers_of

log = logging.getLogger("llmgw.mirror")

T = TypeVar("T")
AGAIN_S = 5.0
"""After the disk failed."""


class Library:
    """Follows the state: ``run`` runs as long as the mirror does, and acts whenever ``changed`` was called."""

    def __init__(self, store: Store, state: Callable[[], State]) -> None:
        self._store = store
        self._state = state
        self._intake = Intake(store)
        self._changed = asyncio.Event()
        self._reconciling = asyncio.Lock()
        # Imports come one at a time; taking inventory goes on meanwhile.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="store")
        self._reported: list[str] = []
        self.served = ServedFiles()

    @property
    def importing(self) -> Progress | None:
        """Of the import that goes on now."""
        return self._intake.progress

    def changed(self) -> None:
        """What is served and what is stored may be out of date: have ``run`` see to it."""
        self._changed.set()

    def name_of(self, file: WeightFile) -> str:
        """Where a file of the library belongs, for people: ``tiny@1a2b3c: model.gguf``."""
        for versions in self._state().versions.values():
            for version in versions.values():
                if any(known.sha256 == file.sha256 for known in version.files):
                    return f"{version.name}@{version.version}: {file.path}"
        return file.path

    async def run(self) -> None:
        """Reconcile whenever something changed; for ever."""
        while True:
            await self._changed.wait()
            await self.reconcile()

    async def reconcile(self) -> None:
        """Make the files that are served and the store what the state says, if it changed since the last time."""
        async with self._reconciling:
            if not self._changed.is_set():
                return
            self._changed.clear()
            try:
                await self._reconcile()
            except OSError as error:
                log.error("the store cannot be looked through: %s; trying again in %g s", error, AGAIN_S)
                asyncio.get_running_loop().call_later(AGAIN_S, self._changed.set)

    async def _reconcile(self) -> None:
        state = self._state()
        versions = [version for versions in state.versions.values() for version in versions.values()]
        former = sorted(state.former)
        self._store.named(state.files().keys())
        self.served = await self._in_thread(partial(inventory, self._store, versions))
        missing = self.served.missing()
        for sentence in missing:
            if sentence not in self._reported:
                log.error("%s", sentence)
        self._reported = missing
        # Only when they are served no longer: nobody is promised a file that goes away.
        freed = await self._in_thread(partial(self._store.delete, former))
        if freed:
            log.info("%s freed: files no version has any more", shown(freed))

    async def carry_out(self, wanted: Import, given_up: threading.Event) -> Event:
        """Bring an import's files here; the event that ends it well. Raises Refused; GivenUp after ``given_up``."""
        log.info("import of %s from %s begins", wanted.name, wanted.source)
        source = parse_source(wanted.source)
        imported = await self._in_thread(partial(self._intake.bring_in, source, wanted.name, given_up))
        version = LibraryVersion(
            name=wanted.name,
            version=version_of(imported.files),
            files=imported.files,
            source=wanted.source,
            licence=wanted.licence or imported.licence,
            headers=await self._in_thread(partial(headers_of, wanted.name, self._store, imported.files)),
        )
        size = sum(file.size_bytes for file in imported.files)
        log.info(
            "import of %s: %d files, %s, version %s", *(wanted.name, len(imported.files), shown(size), version.version)
        )
        if self._state().has(version):
            self.changed()  # files that were missing are here again
            return ImportEnded(at=utc_now(), name=wanted.name, started=wanted.started)
        return VersionAdded(at=utc_now(), name=version.name, version=version, started=wanted.started)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def stop(self) -> None:
        """Begin nothing more; what a thread is doing is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
