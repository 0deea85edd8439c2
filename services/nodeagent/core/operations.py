"""What the agent keeps of an operation it was asked for, so that it is done once however often the agent dies over it.

On the wire an operation is called an errand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from libs.events.node import Errand
from libs.events.views import ErrandWanted

Outcome = Literal["done", "refused", "failed"]


class OperationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Written before the step it announces."""

    number: int
    errand: Errand
    begun_in: int = 0
    """The start of the agent (they are counted) in which it was begun; 0: it was not."""
    outcome: Outcome | None = None
    reason: str = ""
    reported: bool = msgspec.field(default=False, name="told")
    """Its end is among the facts on their way to the log."""


def due(
    records: Mapping[int, OperationRecord], wanted: Iterable[ErrandWanted]
) -> tuple[list[OperationRecord], set[int]]:
    """What is to be done or reported, in its order; and the numbers that may be forgotten: the log has their end."""
    standing = {errand.number: errand.errand for errand in wanted}
    # Another operation of a number: the log went back, and gave that number again.
    known = {number: record for number, record in records.items() if standing.get(number) == record.errand}
    new = {number: OperationRecord(number=number, errand=errand) for number, errand in standing.items()}
    asked = [record for _, record in sorted((new | known).items())]
    return [record for record in asked if not record.reported], records.keys() - known.keys()


def encode(records: Mapping[int, OperationRecord]) -> bytes:
    """Records as they are kept on disk."""
    return msgspec.json.encode([records[number] for number in sorted(records)])


def decode(content: bytes) -> dict[int, OperationRecord]:
    """By number. Raises msgspec.DecodeError."""
    return {record.number: record for record in msgspec.json.decode(content, type=list[OperationRecord])}
