"""Workers of one socket see how many connections the others have."""

from __future__ import annotations

import os

from services.gateway.http.connection_balance import (
    MORE,
    ConnectionBalance,
    shared_memory,
    worker_ended,
)


def test_who_has_more_is_told_so() -> None:
    descriptor = shared_memory(3)
    first, second, third = (ConnectionBalance(os.dup(descriptor), 3, index) for index in range(3))
    os.close(descriptor)
    for one in (first, second, third):
        one.report(0)
    assert not first.surplus(MORE)
    assert first.surplus(MORE + 1)
    second.surplus(5)
    assert first.surplus(MORE + 1), "the third has none"
    third.surplus(2)
    assert not first.surplus(2 + MORE)
    assert first.surplus(2 + MORE + 1)


def test_who_begins_again_has_none() -> None:
    descriptor = shared_memory(2)
    first, second = ConnectionBalance(os.dup(descriptor), 2, 0), ConnectionBalance(os.dup(descriptor), 2, 1)
    second.surplus(9)
    assert not first.surplus(9)
    ConnectionBalance(os.dup(descriptor), 2, 1).report(0)
    assert first.surplus(9)
    os.close(descriptor)


def test_connections_are_left_only_to_those_who_take_them() -> None:
    descriptor = shared_memory(3)
    first, second, _ = (ConnectionBalance(os.dup(descriptor), 3, index) for index in range(3))
    assert not first.surplus(9), "the others have not begun"
    assert not first.pause()
    second.report(5)
    assert first.pause()
    assert not second.surplus(5), "the first takes none"
    worker_ended(descriptor, 1)
    assert not first.pause(), "who ended takes none"
    os.close(descriptor)


def test_who_is_alone_never_has_more() -> None:
    alone = ConnectionBalance(shared_memory(1), 1, 0)
    assert not any(alone.surplus(count) for count in (0, 1, 1000))
