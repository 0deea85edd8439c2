"""The leader's imports: what the log says was started and not ended is brought in, one after another."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from libs.bus import Bus
from libs.events import Event
from libs.events.library import ImportEnded, ImportProgress
from libs.events.refusal import Refused
from libs.runtime.clock import utc_now
from libs.tasks import end

from .adapters.intake import GivenUp
from .core.state import Import, State
from .library import Library

log = logging.getLogger("llmgw.mirror")

LOOK_EVERY_S = 0.1
"""How soon an import begins, and one that is not to go on is given up."""
TELL_EVERY_S = 0.5


class Imports:
    """Works beside the mirror's commands. How an import ended is what the leader decides next (``due``)."""

    def __init__(
        self,
        bus: Bus,
        mirror_id: str,
        library: Library,
        state: Callable[[], State],
        leading: Callable[[], bool],
        ended: Callable[[], None],
    ) -> None:
        """``ended`` is called when there is something due."""
        self._bus = bus
        self._mirror_id = mirror_id
        self._library = library
        self._state = state
        self._leading = leading
        self._on_ended = ended
        self._ended: dict[str, Event] = {}
        """By what started them; until the log has them."""
        self._stopping = False

    def due(self, state: State) -> list[tuple[str, Event]]:
        """How imports ended that the log does not say yet, as (cause, event)."""
        self._ended = {started: event for started, event in self._ended.items() if started in state.imports}
        return [(f"mirror:import:{started}", event) for started, event in self._ended.items()]

    async def run(self) -> None:
        """Work, for ever."""
        while not self._stopping:
            started = next((each for each in self._state().imports if each not in self._ended), None)
            if started is None or not self._leading():
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            await self._carry_out(started, self._state().imports[started])

    async def _carry_out(self, started: str, wanted: Import) -> None:
        given_up = threading.Event()
        work = asyncio.create_task(self._end_of(wanted, given_up), name=f"import {wanted.name}")
        telling = self._bus.background("an import's progress", self._tell_progress)
        try:
            while not work.done():
                if self._stopping or not self._leading() or started not in self._state().imports:
                    given_up.set()
                await asyncio.wait({work}, timeout=LOOK_EVERY_S)
            event = work.result()
        finally:
            given_up.set()
            await end(telling, work)
        if event is not None:
            self._ended[started] = event
            self._on_ended()

    async def _end_of(self, wanted: Import, given_up: threading.Event) -> Event | None:
        """How it ended; None: it did not, somebody else is to go on with it or nobody."""
        try:
            return await self._library.carry_out(wanted, given_up)
        except GivenUp:
            log.info("import of %s is given up here", wanted.name)
            return None
        except Refused as refused:
            problem = "; ".join(each.message for each in refused.problems)
        except Exception as error:
            log.exception("import of %s failed", wanted.name)
            problem = f"it failed: {type(error).__name__}: {error}"
        log.warning("import of %s: %s", wanted.name, problem)
        return ImportEnded(at=utc_now(), name=wanted.name, started=wanted.started, problem=problem)

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            progress = self._library.importing
            if progress is None:
                continue
            await self._bus.tell(
                ImportProgress(
                    at=utc_now(),
                    mirror_id=self._mirror_id,
                    name=progress.name,
                    done_bytes=progress.done_bytes,
                    total_bytes=progress.total_bytes,
                    bytes_per_s=int(progress.bytes_per_s),
                )
            )

    def stop(self) -> None:
        """Give up what goes on: the next leader begins it again."""
        self._stopping = True
