"""Prices and what a request costs.

A price's version is the sequence of its event in the log. What a request costs depends on the version in
force when it closed and on nothing else, so a ledger can be priced again from the log and come out equal.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime

import msgspec

from libs.events.tenancy import Price
from libs.events.usage import CHARGED, Status

ANY_MODEL = "*"
"""The model name of the price for every model without one of its own."""


class PriceVersion(msgspec.Struct, frozen=True):
    version: int
    """Sequence of its event in EVENTS."""
    since: datetime
    """In force for requests that close at or after this, until the next version's ``since``."""
    price: Price


Prices = dict[str, list[PriceVersion]]
"""Model (or ``*``) to its versions, oldest first."""


def add(prices: Prices, version: int, at: datetime, price: Price) -> None:
    """Append a version. One whose clock ran behind its predecessor's takes over at the predecessor's time:
    the log's order decides which is newer, not the clocks of two leaders."""
    versions = prices.setdefault(price.model, [])
    since = max(at, versions[-1].since) if versions else at
    versions.append(PriceVersion(version, since, price))


def in_force(prices: Prices, model: str, at: datetime) -> PriceVersion | None:
    """The price for a model at a time: its own, else the one for any model; None where neither was set yet."""
    for name in (model, ANY_MODEL):
        versions = prices.get(name, ())
        after = bisect_right(versions, at, key=lambda v: v.since)
        if after:
            return versions[after - 1]
    return None


def newest(prices: Prices) -> list[Price]:
    """The last price of every model, by name."""
    return [prices[model][-1].price for model in sorted(prices)]


def charge(
    prices: Prices,
    model: str,
    closed_at: datetime,
    status: Status,
    prompt_tokens: int,
    cached_tokens: int,
    completion_tokens: int,
) -> tuple[int | None, int]:
    """Price version and cost of a request. The version is None where no price was in force."""
    version = in_force(prices, model, closed_at)
    if version is None:
        return None, 0
    if status not in CHARGED:
        return version.version, 0
    return version.version, version.price.cost_micros(prompt_tokens, cached_tokens, completion_tokens)
