"""A state that was kept on disk and read back goes on as the one that was not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from services.scheduler.core.state.evolve import evolve
from services.scheduler.core.state.snapshot import Kept, keep, restore
from services.scheduler.core.state.state import State
from services.scheduler.core.views.desired import wanted_on
from services.scheduler.core.views.history import explain
from services.scheduler.core.views.node_views import node_view
from services.scheduler.core.views.routes import route

from .record import HISTORIES, read


def _read_back(state: State) -> State:
    return restore(msgspec.json.decode(msgspec.json.encode(keep(state)), type=Kept))


def _seen(state: State) -> object:
    """All that anybody is told of it."""
    return (
        state.hash(),
        state.position,
        state.election,
        {m: wanted_on(state, m) for m in state.facts.machines},
        {m: node_view(state, machine) for m, machine in state.facts.machines.items()},
        {name: route(state, model) for name, model in state.facts.models.items()},
        {name: explain(state, model) for name, model in state.facts.models.items()},
        state.leaving.keys(),
    )


@pytest.mark.parametrize("path", sorted(HISTORIES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_history_goes_on_from_any_place_in_it(path: Path) -> None:
    events, expected = read(path)
    kept, whole = State(), State()
    for number, (sequence, event) in enumerate(events):
        kept, whole = evolve(kept, event, sequence), evolve(whole, event, sequence)
        if number % max(1, len(events) // 40) == 0:
            kept = _read_back(kept)
            assert _seen(kept) == _seen(whole)
    assert kept.hash() == whole.hash() == expected.hash
