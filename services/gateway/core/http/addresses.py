"""Where a request comes from: the peer, or whom a proxy that is trusted says it speaks for."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

HOUSEHOLD_BITS = 64
"""Of an IPv6 address: whoever has one has all that begin like it."""


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks as people write them (``10.0.0.7``, ``10.0.0.0/8``). Raises ValueError."""
    return tuple(ip_network(text, strict=False) for text in texts)


def origin(peer: str, forwarded: Iterable[bytes], trusted: tuple[Network, ...]) -> str:
    """The address to hold something against, as text: of IPv6 the network of 64 bits.

    ``forwarded`` are the values of ``X-Forwarded-For`` in the order they came. They count only as far as trusted
    proxies wrote them: from the end, the first address that is no trusted proxy is the client.
    """
    address = _address(peer)
    if address is None:
        return peer
    if _among(address, trusted):
        for text in reversed(b",".join(forwarded).decode("latin-1").split(",")):
            named = _address(text.strip())
            if named is None:
                break
            address = named
            if not _among(address, trusted):
                break
    if isinstance(address, IPv6Address):
        return str(ip_network((address, HOUSEHOLD_BITS), strict=False))
    return str(address)


def _address(text: str) -> Address | None:
    # Some proxies add the port: 1.2.3.4:5678, [2001:db8::1]:5678.
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _among(address: Address, among: tuple[Network, ...]) -> bool:
    return any(address in network for network in among)
