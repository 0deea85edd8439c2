"""What comes before something is known to be in the ledger, or not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.accounting.core.watermark import Watermark


def test_what_comes_in_order_is_complete_at_once() -> None:
    order = Watermark(4, 4)
    assert order.complete
    assert order.after([5, 6, 7]) == Watermark(7, 7)


def test_what_a_dead_leader_held_is_waited_for() -> None:
    order = Watermark(4, 6).after([7, 8])
    assert not order.complete
    assert not order.after([5]).complete
    assert order.after([6, 5]) == Watermark(8, 8)
    assert order.at_least(6) == Watermark(8, 8), "somebody else dealt with it, or it is parked"
    assert order.at_least(3) == order


@given(st.permutations(range(1, 13)), st.lists(st.integers(1, 12), max_size=5))
def test_it_is_complete_exactly_when_nothing_before_is_missing(sequences: list[int], again: list[int]) -> None:
    order = Watermark(0, 0)
    seen: set[int] = set()
    for sequence in [*sequences, *again]:
        seen.add(sequence)
        order = order.after([sequence])
        assert order.complete == (seen == set(range(1, max(seen) + 1)))
    assert order == Watermark(12, 12)
