"""Questions, answered from this instance's own state, whether it leads or stands by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from libs.events import Question
from libs.events.library import ImportUnderWay
from libs.events.questions import LibraryAnswer, ListLibrary

from .core.state import Import, State, entries
from .library import Library


class Questions:
    """Reads only."""

    def __init__(self, state: Callable[[], State], library: Library) -> None:
        self._state = state
        self._library = library

    def handlers(self) -> Mapping[type[Question], Callable[[Any], Awaitable[Any]]]:
        """Kind of question to who answers it."""
        return {ListLibrary: self.library}

    async def library(self, question: ListLibrary) -> LibraryAnswer:
        """Every version there is, and imports that did not end."""
        state = self._state()
        known = entries(state)
        return LibraryAnswer(
            entries=tuple(known[name] for name in sorted(known)),
            imports=tuple(self._under_way(wanted) for wanted in state.imports.values()),
        )

    def _under_way(self, wanted: Import) -> ImportUnderWay:
        progress = self._library.importing
        here = progress is not None and progress.name == wanted.name
        return ImportUnderWay(
            name=wanted.name,
            source=wanted.source,
            started=wanted.started,
            since=wanted.since,
            done_bytes=progress.done_bytes if here and progress else 0,
            total_bytes=progress.total_bytes if here and progress else 0,
        )
