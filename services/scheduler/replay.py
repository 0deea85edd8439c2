"""Folding a recorded log with the scheduler's core, for questions about the past."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from libs.events import Event, subject_of

from .app import SUBJECTS
from .core.evolve import evolve
from .core.state import State
from .core.views import model_view, node_state


class Fold(NamedTuple):
    position: int
    """Sequence of the last event that says something to the scheduler."""
    hash: str
    """Equal to that of a running scheduler at the same position."""
    summary: tuple[str, ...]
    """The state in a few sentences."""


def fold(events: Iterable[tuple[int, Event]]) -> Fold:
    """Fold events with their sequences in EVENTS, in order. Events of other services may be among them."""
    state = State()
    prefixes = tuple(subject.removesuffix(">") for subject in SUBJECTS)
    for sequence, event in events:
        if subject_of(event).startswith(prefixes):
            state = evolve(state, event, sequence)
    return Fold(state.position, state.hash(), _summary(state))


def _summary(state: State) -> tuple[str, ...]:
    lines = []
    for machine_id, machine in sorted(state.facts.machines.items()):
        lines.append(f"node {machine_id} is {node_state(machine)}, {len(state.held.get(machine_id, ()))} shards on it")
    for name, model in sorted(state.facts.models.items()):
        view = model_view(state, model)
        lines.append(f"model {name} is {view.state}, {view.ready} of {view.wanted} wanted are ready")
    return tuple(lines)
