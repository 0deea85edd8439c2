from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.nodeagent.core.shard.reconcile import (
    Forget,
    Start,
    Stop,
    newer,
    reconcile,
)
from services.nodeagent.core.shard.record import ENDED, Phase, ShardRecord

from .wanted import desired, shard

PHASES: tuple[Phase, ...] = Phase.__args__  # type: ignore[attr-defined]


def record(shard_id: str = "r-1-0", phase: Phase = "ready", **fields: object) -> ShardRecord:
    return ShardRecord(wanted=shard(shard_id, **fields), generation=1, phase=phase)


def test_nothing_said_changes_nothing() -> None:
    assert reconcile(None, {"r-1-0": record()}) == []


def test_what_is_wanted_and_absent_is_started_for_this_generation() -> None:
    wanted = shard()
    assert reconcile(desired(7, wanted), {}) == [Start(wanted, 7)]


def test_what_runs_and_is_wanted_is_left_alone() -> None:
    for phase in PHASES:
        if phase not in ENDED:
            assert reconcile(desired(2, shard()), {"r-1-0": record(phase=phase)}) == []


def test_an_ended_shard_is_not_started_again_however_much_it_is_wanted() -> None:
    for phase in ENDED:
        assert reconcile(desired(9, shard()), {"r-1-0": record(phase=phase)}) == []


def test_what_is_not_wanted_is_stopped_and_then_forgotten() -> None:
    nothing = desired(2)
    assert reconcile(nothing, {"r-1-0": record()}) == [Stop("r-1-0", "no longer wanted here")]
    assert reconcile(nothing, {"r-1-0": record(phase="stopping")}) == []
    assert reconcile(nothing, {"r-1-0": record(phase="stopped")}) == [Forget("r-1-0")]


def test_stops_come_before_starts() -> None:
    actions = reconcile(desired(2, shard("r-2-0")), {"r-1-0": record()})
    assert [type(action) for action in actions] == [Stop, Start]


def test_a_newer_generation_of_a_shard_replaces_the_older_one() -> None:
    wanted = shard(generation=2)
    stop = reconcile(desired(3, wanted), {"r-1-0": record()})
    assert [type(action) for action in stop] == [Stop]
    assert reconcile(desired(3, wanted), {"r-1-0": record(phase="stopping")}) == []
    assert reconcile(desired(3, wanted), {"r-1-0": record(phase="stopped")}) == [Start(wanted, 3)]


def test_an_older_state_never_replaces_a_newer_one() -> None:
    assert newer(None, desired(1))
    assert newer(desired(1), desired(2))
    assert not newer(desired(2), desired(1))
    assert not newer(desired(2), desired(2))


def test_a_state_of_a_newer_term_replaces_one_of_a_log_that_is_no_more() -> None:
    late, early = (msgspec.structs.replace(desired(number), term=term) for number, term in ((900, 1), (40, 2)))
    assert newer(late, early)
    assert not newer(early, late)
    assert newer(desired(900), early)  # an earlier version's scheduler named no term


@given(
    wanted=st.sets(st.sampled_from("abcd")),
    held=st.dictionaries(st.sampled_from("abcd"), st.sampled_from(PHASES)),
)
def test_doing_what_it_says_ends_with_what_was_wanted(wanted: set[str], held: dict[str, Phase]) -> None:
    state = desired(5, *(shard(name) for name in sorted(wanted)))
    records = {name: record(name, phase=phase) for name, phase in held.items()}
    for _ in range(4):
        for action in reconcile(state, records):
            if isinstance(action, Start):
                records[action.wanted.shard_id] = ShardRecord(wanted=action.wanted, generation=5, phase="ready")
            elif isinstance(action, Stop):
                stopping = records[action.shard_id]
                assert stopping.phase not in ENDED
                records[action.shard_id] = msgspec.structs.replace(stopping, phase="stopping")
            else:
                assert records.pop(action.shard_id).phase in ENDED
        for name, one in list(records.items()):
            if one.phase == "stopping":
                records[name] = msgspec.structs.replace(one, phase="stopped")
    assert set(records) == wanted
    assert reconcile(state, records) == []
    for name, phase in held.items():
        if name in wanted and phase not in (*ENDED, "stopping"):
            assert records[name].phase == phase, "what ran and is wanted was touched"


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_an_answer(phase: Phase) -> None:
    assert len(reconcile(desired(2), {"r-1-0": record(phase=phase)})) == (0 if phase == "stopping" else 1)
