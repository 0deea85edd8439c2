"""Recorded histories fold to the state they folded to when they were recorded, in this process and in any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.scheduler.core.reconciler.reconcile import Reconciler
from services.scheduler.core.state.evolve import evolve
from services.scheduler.core.state.state import State
from services.scheduler.replay import fold

from .record import HISTORIES, STORIES, read

RECORDED = sorted(HISTORIES.glob("*.jsonl"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_history_folds_to_its_state(path: Path) -> None:
    events, expected = read(path)
    folded = fold(events)
    assert (folded.position, folded.hash) == (expected.position, expected.hash)


def test_none_is_missing() -> None:
    assert {path.stem for path in RECORDED} >= set(STORIES)


def test_the_hash_is_the_same_in_another_process() -> None:
    program = (
        "from tests.replay.record import *; "
        "print(*(fold(read(p)[0]).hash for p in sorted(HISTORIES.glob('*.jsonl'))), sep='\\n')"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [read(path)[1].hash for path in RECORDED]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_nothing_is_left_to_decide_at_the_end_of_a_history(path: Path) -> None:
    """Each was recorded until it was settled; a leader that takes over there says nothing."""
    events, _ = read(path)
    state = State()
    for sequence, event in events:
        state = evolve(state, event, sequence)
    assert Reconciler().react(state, None, events[-1][1].at) == []


def test_a_cut_off_history_is_another_state() -> None:
    events, expected = read(RECORDED[0])
    assert fold(events[: len(events) // 2]).hash != expected.hash
