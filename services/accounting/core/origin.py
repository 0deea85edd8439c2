"""Whether ledger and stream belong together: either may have been begun anew, or put back from a copy.

The ledger notes in each transaction how far in which stream it is. The stream knows, by its durable consumer, what was
acknowledged as entered. Compared when an instance begins to write, the two show what happened to either.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec


class Reached(msgspec.Struct, frozen=True):
    """How far in the stream a transaction takes the ledger."""

    epoch: str
    since: int
    """The highest sequence that was in the ledger before; a ledger that lacks it is not the one that was written."""
    complete: int
    """Everything up to this sequence is in the ledger."""
    sequence: int
    """The highest that is."""
    mark: str
    """Of the message there: no other has it, should the stream go back and number its messages again."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """One history of the stream, as the ledger has it."""

    epoch: str
    """Names it; later ones sort behind earlier ones. What is published with sequences names it too."""
    stream: str
    """When the stream was created."""
    begun_at: datetime
    complete: int = 0
    reached: int = 0
    mark: str = ""
    why: str = ""


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """The stream as it is."""

    created: str
    last: int
    done: int
    """Everything up to here was acknowledged as entered."""
    mark: str | None
    """Of the message at the place the ledger reached; None: it holds none there any more."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """How to go on."""

    origin: Origin
    after: int | None = None
    """Behind this sequence the ledger lacks what was acknowledged: it is to be entered again. None: nothing is."""


BUS_ANEW = (
    "the bus was begun anew on {created}: keys, models, policies and all else that was defined before is gone from it, "
    "the ledger is not; put a backup of the bus back, or apply your files and hand out new keys"
)
BUS_BACK = (
    "the bus was put back from a copy, noticed on {now}: what was defined after the copy was made is gone, the ledger "
    "is not; look through keys and models, and apply your files"
)
LEDGER_ANEW = (
    "the database was found empty on {now}, and the bus is not: the ledger was counted anew from the usage the bus "
    "keeps, and what budgets had spent was taken from what was last published; older requests are gone unless a backup "
    "of the database is put back"
)
LEDGER_BACK = (
    "the database was put back from a copy, noticed on {now}: what it lacked was entered again, as far as the usage "
    "the bus keeps goes back"
)


def begin(known: Origin | None, holds_requests: bool, stream: Stream, now: datetime) -> Beginning:
    """What a comparison shows. ``known`` is the ledger's newest origin, ``holds_requests``: it has any request."""
    if known is None:
        # A ledger of an earlier version names no stream: it is this one's.
        origin = _origin(known, stream, now, "" if holds_requests or not stream.done else LEDGER_ANEW)
        return Beginning(origin=origin, after=None if holds_requests or not stream.done else 0)
    if known.stream != stream.created:
        return Beginning(origin=_origin(known, stream, now, BUS_ANEW), after=0 if stream.done else None)
    if stream.last < known.reached or (stream.mark is not None and known.mark and stream.mark != known.mark):
        return Beginning(origin=_origin(known, stream, now, BUS_BACK))
    if stream.done > known.complete and known.why and not known.mark:
        return Beginning(origin=known, after=known.complete)  # it was begun, and not brought to its end
    if stream.done > known.complete:
        return Beginning(origin=_origin(known, stream, now, LEDGER_BACK), after=known.complete)
    return Beginning(origin=known)


def _origin(known: Origin | None, stream: Stream, now: datetime, why: str) -> Origin:
    at = now.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    epoch = stream.created if not why or why is BUS_ANEW else at
    if known is not None and epoch <= known.epoch:
        epoch = max(at, f"{known.epoch}+")  # also where a clock was ahead, or was put back
    return Origin(
        epoch=epoch,
        stream=stream.created,
        begun_at=now,
        complete=stream.done,
        reached=stream.done,
        why=why.format(created=stream.created[:19].replace("T", " "), now=at[:16].replace("T", " ")),
    )
