"""What the agent keeps of an errand, so that it is done once however often the agent dies over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from libs.events.node import Errand
from libs.events.views import ErrandWanted

Outcome = Literal["done", "refused", "failed"]


class ErrandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Written before the step it announces."""

    number: int
    errand: Errand
    begun_in: int = 0
    """The start of the agent (they are counted) in which it was begun; 0: it was not."""
    outcome: Outcome | None = None
    reason: str = ""
    told: bool = False
    """Its end is among the facts on their way to the log."""


def due(records: Mapping[int, ErrandRecord], wanted: Iterable[ErrandWanted]) -> tuple[list[ErrandRecord], set[int]]:
    """What is to be done or told, in its order; and the numbers that may be forgotten: the log has their end."""
    standing = {one.number: one.errand for one in wanted}
    # Another errand of a number: the log went back, and gave that number again.
    known = {number: one for number, one in records.items() if standing.get(number) == one.errand}
    open_ones = [known.get(number) or ErrandRecord(number=number, errand=errand) for number, errand in standing.items()]
    return [one for one in sorted(open_ones, key=lambda one: one.number) if not one.told], records.keys() - known.keys()


def encode(records: Mapping[int, ErrandRecord]) -> bytes:
    return msgspec.json.encode([records[number] for number in sorted(records)])


def decode(content: bytes) -> dict[int, ErrandRecord]:
    """Raises msgspec.DecodeError."""
    return {one.number: one for one in msgspec.json.decode(content, type=list[ErrandRecord])}
