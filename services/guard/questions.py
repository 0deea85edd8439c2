"""Questions, answered from this instance's own state, whether it leads or stands by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from libs.events import Question
from libs.events.questions import ListPolicies, PoliciesAnswer

from .core.state import State


class Questions:
    """Reads only."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state

    def handlers(self) -> Mapping[type[Question], Callable[[Any], Awaitable[Any]]]:
        """Kind of question to who answers it."""
        return {ListPolicies: self.policies}

    async def policies(self, question: ListPolicies) -> PoliciesAnswer:
        """All policies, by name."""
        policies = self._state().policies
        return PoliciesAnswer(policies=tuple(policies[name] for name in sorted(policies)))
