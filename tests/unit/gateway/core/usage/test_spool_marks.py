"""Positions of a spool and sequences of USAGE: what the ledger has is never taken for more than it is."""

from __future__ import annotations

from random import Random

from services.gateway.core.usage.spool_marks import MAX_MARKS, Marks


def test_a_stretch_counts_when_the_ledger_is_complete_up_to_its_message() -> None:
    marks = Marks()
    marks.add(100, 7)
    marks.add(250, 12)
    assert [marks.position(sequence) for sequence in (0, 6, 7, 11, 12, 99)] == [0, 0, 100, 100, 250, 250]
    assert [marks.sequence(position) for position in (1, 100, 101, 250, 251)] == [7, 7, 12, 12, 0]
    marks.begin("another stream")
    assert (marks.position(99), marks.sequence(1), marks.end) == (0, 0, 0)


def test_a_stretch_sent_again_that_the_stream_knows_by_an_older_sequence() -> None:
    marks = Marks()
    marks.add(100, 7)
    marks.add(200, 5)
    marks.add(150, 9)
    assert list(marks) == [(100, 7), (200, 7)]


def test_what_is_joined_counts_no_earlier_than_it_should() -> None:
    chance, marks, exact, end, sequence = Random(5), Marks(), [], 0, 0
    for _ in range(3 * MAX_MARKS):
        end, sequence = end + chance.randint(1, 9), sequence + chance.randint(1, 3)
        marks.add(end, sequence)
        exact.append((end, sequence))
    assert len(list(marks)) <= MAX_MARKS
    for at, sequence in exact[::50]:
        assert marks.position(sequence) <= at
        assert marks.sequence(at) >= sequence
    assert marks.position(exact[-1][1]) == exact[-1][0]
