"""Who is held to be asking, and how often that one may be wrong."""

from __future__ import annotations

import pytest

from services.gateway.core.http.addresses import networks, origin
from services.gateway.core.http.throttle import MAX_ADDRESSES, Throttle

PROXIES = networks(["10.0.0.0/8", "fd00::1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("1.2.3.4", [], "1.2.3.4"),
        ("1.2.3.4", [b"9.9.9.9"], "1.2.3.4"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [b"9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", [b"6.6.6.6, 9.9.9.9"], "9.9.9.9"),
        ("10.0.0.1", [b"6.6.6.6, 9.9.9.9, 10.1.1.1"], "9.9.9.9"),
        ("10.0.0.1", [b"6.6.6.6", b"9.9.9.9,10.1.1.1"], "9.9.9.9"),
        ("10.0.0.1", [b"9.9.9.9:4711"], "9.9.9.9"),
        ("10.0.0.1", [b"nonsense"], "10.0.0.1"),
        ("10.0.0.1", [b"9.9.9.9, nonsense, 10.1.1.1"], "10.1.1.1"),
        ("10.0.0.1", [b"\xff\x00"], "10.0.0.1"),
        ("10.0.0.1", [b"10.2.2.2"], "10.2.2.2"),
        ("fd00::1", [b"[2001:db8::7]:99"], "2001:db8::/64"),
        ("::ffff:10.0.0.1", [b"2001:db8:0:0:1::9"], "2001:db8::/64"),
        ("2001:db8::1", [], "2001:db8::/64"),
        ("a socket", [b"9.9.9.9"], "a socket"),
    ],
)
def test_the_origin(peer: str, forwarded: list[bytes], found: str) -> None:
    assert origin(peer, forwarded, PROXIES) == found


def test_networks_that_are_none() -> None:
    with pytest.raises(ValueError, match="does not appear"):
        networks(["10.0.0.0/8", "proxy.example"])


def test_tries_run_out_and_come_back() -> None:
    throttle = Throttle(6)
    assert [throttle.tried("a", 0.0) for _ in range(6)] == [None] * 6
    assert throttle.tried("a", 0.0) == pytest.approx(10)
    assert throttle.tried("a", 4.0) == pytest.approx(6)
    assert throttle.tried("b", 4.0) is None
    assert throttle.tried("a", 10.1) is None
    assert throttle.tried("a", 10.2) is not None
    assert [throttle.tried("a", 1000.0) for _ in range(7)].count(None) == 6


def test_memory_is_bounded() -> None:
    throttle = Throttle(1)
    for n in range(2 * MAX_ADDRESSES):
        throttle.tried(f"a{n}", float(n))
    assert len(throttle._left) == MAX_ADDRESSES
