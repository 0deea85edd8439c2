"""The view ``policies``: what gateways need to know."""

from __future__ import annotations

from libs.bus import View
from libs.events.policy import PolicySpec

from .core.state import State


class PoliciesView:
    """Keeps the bucket as the state is.

    After an election the bucket is read once, since another instance may have written it meanwhile.
    """

    def __init__(self, view: View[PolicySpec]) -> None:
        self._view = view
        self._election = 0
        self._written: dict[str, PolicySpec] = {}

    async def refresh(self, state: State, position: int) -> None:
        if state.election != self._election:
            self._written = await self._view.all()
            self._election = state.election
        for name in self._written.keys() - state.policies.keys():
            await self._view.delete(name)
            del self._written[name]
        for name, spec in state.policies.items():
            if self._written.get(name) != spec:
                await self._view.put(name, spec)
                self._written[name] = spec
