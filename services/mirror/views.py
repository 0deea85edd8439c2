"""The view ``library``: what can be asked for, and where."""

from __future__ import annotations

from libs.bus import View
from libs.events.views import LibraryEntry

from .core.state import State, entries


class LibraryView:
    """Keeps the bucket as the state is.

    After an election the bucket is read once, since another instance may have written it meanwhile.
    """

    def __init__(self, view: View[LibraryEntry]) -> None:
        self._view = view
        self._election = 0
        self._position = 0
        self._written: dict[str, LibraryEntry] = {}

    async def refresh(self, state: State, position: int) -> None:
        if state.election != self._election:
            self._written = await self._view.all()
            self._election = state.election
        elif position == self._position:
            return
        wanted = entries(state)
        for name in self._written.keys() - wanted.keys():
            await self._view.delete(name)
            del self._written[name]
        for name, entry in wanted.items():
            if self._written.get(name) != entry:
                await self._view.put(name, entry)
                self._written[name] = entry
        self._position = position
