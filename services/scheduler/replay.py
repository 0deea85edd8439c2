"""Folding a recorded log with the scheduler's core, for questions about the past and about what is not yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from libs.events import Command, Event, subject_of
from libs.events.machine import MachineSample
from libs.events.questions import ModelExplained
from libs.events.views import ModelView, NodeView

from .core.commands.decide import model_named
from .core.state.evolve import SUBJECTS, evolve
from .core.state.state import State
from .core.views.history import explain
from .core.views.model_views import model_view
from .core.views.node_views import node_state, node_view
from .whatif import WhatIf, what_if


class Fold:
    """The scheduler's state after some events."""

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def position(self) -> int:
        """Sequence of the last event that says something to the scheduler."""
        return self._state.position

    @property
    def hash(self) -> str:
        """Equal to that of a running scheduler at the same position."""
        return self._state.hash()

    @property
    def summary(self) -> tuple[str, ...]:
        """The state in a few sentences."""
        lines = []
        for machine_id, machine in sorted(self._state.facts.machines.items()):
            shards, word = len(self._state.held.get(machine_id, ())), node_state(self._state, machine)
            lines.append(f"node {machine_id} is {word}, {shards} shard{'s' * (shards != 1)} on it")
        for view in self.models():
            lines.append(f"model {view.model} is {view.state}, {view.ready} of {view.wanted} wanted are ready")
        return tuple(lines)

    def nodes(self) -> tuple[NodeView, ...]:
        """All machines, by id."""
        return tuple(node_view(self._state, machine) for _, machine in sorted(self._state.facts.machines.items()))

    def models(self) -> tuple[ModelView, ...]:
        """All models, by name."""
        return tuple(model_view(self._state, model) for _, model in sorted(self._state.facts.models.items()))

    def explain(self, model: str) -> ModelExplained:
        """Why a model was as it was. Raises Refused when there was no such model."""
        return explain(self._state, model_named(self._state, model))

    def what_if(
        self, commands: Sequence[Command], lost: Sequence[str], samples: Iterable[MachineSample], now: datetime
    ) -> WhatIf:
        """What would follow from a change. The state is used up by it. Raises Refused."""
        return what_if(self._state, commands, lost, samples, now)


def fold(events: Iterable[tuple[int, Event]]) -> Fold:
    """Fold events with their sequences in EVENTS, in order. Events of other services may be among them."""
    state = State()
    prefixes = tuple(subject.removesuffix(">") for subject in SUBJECTS)
    for sequence, event in events:
        if subject_of(event).startswith(prefixes):
            state = evolve(state, event, sequence)
    return Fold(state)
